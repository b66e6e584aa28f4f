//! What all instruments have in common.

/// A way to gather evidence from the running kernel.
pub trait Instrument {
    /// What it returns: plain data.
    type Measurement;

    /// Whether it can run here.
    ///
    /// # Errors
    /// Why it cannot: a missing privilege, something that the kernel lacks.
    fn available(&self) -> Result<(), InstrumentError>;

    /// Attaches to the kernel and begins to count.
    ///
    /// # Errors
    /// As [`Instrument::available`], or the kernel refused to load or attach.
    fn start(&mut self) -> Result<(), InstrumentError>;

    /// What was gathered since the start; cheap enough for every interval, and changes nothing.
    ///
    /// # Errors
    /// It has not been started.
    fn read(&mut self) -> Result<Self::Measurement, InstrumentError>;

    /// Detaches and returns what was gathered in all.
    ///
    /// # Errors
    /// It has not been started.
    fn stop(&mut self) -> Result<Self::Measurement, InstrumentError>;
}

/// Why an instrument cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstrumentError {
    /// The process may not do it.
    #[error("{0} needs root (CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN)")]
    Privilege(String),
    /// The kernel lacks something.
    #[error("{0}")]
    Unsupported(String),
    /// The kernel refused a step.
    #[error("{step}: {reason}")]
    Refused {
        /// What was tried.
        step: String,
        /// What the kernel said.
        reason: String,
    },
    /// `read` or `stop` without `start`.
    #[error("the instrument has not been started")]
    NotStarted,
}

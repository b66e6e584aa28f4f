//! What scrapers get: renewed at each tick.

use crate::exposition::{Exposition, Format, negotiate};
use crate::http::{Page, Pages};
use crate::recording::Batch;
use crate::runner::clock::Clock;
use crate::runner::config::Render;
use crate::runner::evidence::Gathered;
use crate::runner::records::Sink;
use crate::store::Store;
use nearpath_model::{Diagnosis, Host};
use serde_json::json;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Version of `/findings`.
const FINDINGS_SCHEMA: u32 = 1;
/// Ticks that may be missed before the daemon is not healthy.
const MISSED: u32 = 6;

const INDEX: &str = "\
nearpath monitor

/metrics      metrics: Prometheus text, OpenMetrics, or protobuf with native histograms
/findings     findings of the last diagnosis, as JSON
/report       the last diagnosis with its measurements, as a page
/-/healthy    200 while collections go on
/-/ready      200 after the first collection";

/// The state that threads share.
pub struct Monitored {
    store: Mutex<Store>,
    gathered: Mutex<Gathered>,
    shown: Mutex<Shown>,
    sink: Sink,
    clock: Clock,
    interval: Duration,
    render: Option<Render>,
}

#[derive(Default)]
struct Shown {
    exposition: Arc<Exposition>,
    findings: Option<Arc<[u8]>>,
    diagnosed: Option<Arc<Diagnosed>>,
    ticked: Option<Duration>,
    /// The first thread that has ended too early.
    ended: Option<&'static str>,
}

/// The last diagnosis; its page is made when it is first wanted.
struct Diagnosed {
    host: Host,
    diagnosis: Diagnosis,
    page: OnceLock<Arc<[u8]>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data are whole between any two statements that change them: a thread that panicked leaves nothing half-done
    // that matters.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitored {
    /// Nothing collected yet.
    pub fn new(interval: Duration) -> Self {
        Self {
            store: Mutex::default(),
            gathered: Mutex::default(),
            shown: Mutex::default(),
            sink: Sink::default(),
            clock: Clock::default(),
            interval,
            render: None,
        }
    }

    /// With a page of the last diagnosis.
    #[must_use]
    pub fn with_report(mut self, render: Option<Render>) -> Self {
        self.render = render;
        self
    }

    /// By another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The time since the start.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The series.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        let mut store = lock(&self.store);
        store.advance(self.clock.now());
        store
    }

    /// The evidence.
    pub(crate) fn gathered(&self) -> MutexGuard<'_, Gathered> {
        lock(&self.gathered)
    }

    /// Where recorded rows go.
    pub(crate) fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Records rows, which are made only if there is a recorder.
    pub(crate) fn record(&self, rows: impl FnOnce() -> Batch) {
        self.sink.add(rows);
    }

    /// Renews what scrapers get.
    pub fn tick(&self) {
        let snapshot = self.store().snapshot();
        let mut shown = lock(&self.shown);
        shown.exposition = Arc::new(Exposition::new(snapshot));
        shown.ticked = Some(self.clock.now());
    }

    /// Sets the findings.
    pub fn show_findings(&self, host: &Host, diagnosis: Diagnosis) {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let document = json!({
            "schema": FINDINGS_SCHEMA,
            "time_s": time_s,
            "findings": diagnosis.findings,
            "not_checked": diagnosis.not_checked,
        });
        let bytes = serde_json::to_vec(&document).unwrap_or_default();
        let mut shown = lock(&self.shown);
        shown.findings = Some(bytes.into());
        let page = OnceLock::new();
        shown.diagnosed =
            self.render.map(|_| Arc::new(Diagnosed { host: host.clone(), diagnosis, page }));
    }

    /// The exposition of now.
    pub fn exposition(&self) -> Arc<Exposition> {
        Arc::clone(&lock(&self.shown).exposition)
    }

    /// A thread has ended although the daemon has not.
    pub(crate) fn thread_ended(&self, name: &'static str) {
        lock(&self.shown).ended.get_or_insert(name);
    }

    /// Whether collections go on, in all threads.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy().status == 200
    }

    fn healthy(&self) -> Page {
        let shown = lock(&self.shown);
        let late = self.clock.now().saturating_sub(shown.ticked.unwrap_or_default());
        if let Some(name) = shown.ended {
            Page::text(503, &format!("the thread '{name}' has ended"))
        } else if late < self.interval * MISSED + Duration::from_secs(10) {
            Page::text(200, "healthy")
        } else {
            Page::text(503, &format!("no collection for {} s", late.as_secs()))
        }
    }

    fn ready(&self) -> Page {
        match lock(&self.shown).ticked {
            Some(_) => Page::text(200, "ready"),
            None => Page::text(503, "nothing collected yet"),
        }
    }

    fn report(&self) -> Page {
        let diagnosed = lock(&self.shown).diagnosed.clone();
        let Some((diagnosed, render)) = diagnosed.zip(self.render) else {
            return Page::text(503, "no diagnosis yet");
        };
        let page = || render(&diagnosed.host, &diagnosed.diagnosis).into_bytes().into();
        let body = Arc::clone(diagnosed.page.get_or_init(page));
        Page { status: 200, content_type: "text/html; charset=utf-8", body }
    }

    fn findings(&self) -> Page {
        match lock(&self.shown).findings.clone() {
            Some(body) => Page { status: 200, content_type: "application/json", body },
            None => Page::text(503, "no diagnosis yet"),
        }
    }
}

impl Pages for Monitored {
    fn page(&self, path: &str, accept: &str) -> Option<Page> {
        Some(match path {
            "/" => Page::text(200, INDEX),
            "/metrics" => {
                let format: Format = negotiate(accept);
                let body = self.exposition().encoded(format);
                Page { status: 200, content_type: format.content_type(), body }
            }
            "/findings" => self.findings(),
            "/report" => self.report(),
            "/-/healthy" => self.healthy(),
            "/-/ready" => self.ready(),
            _ => return None,
        })
    }
}

//! `nearpath diagnose`: facts and a measurement together, findings ranked by what they cost.

use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Timing;
use crate::source::{Source, all_facts, memory_of_owners};
use clap::Args;
use nearpath_diagnose::{Diagnosis, diagnose};
use nearpath_host::{Host, Wanted};
use nearpath_instruments::Measurement;
use nearpath_views::text;

const AFTER_HELP: &str = "\
Reads the host, measures its packets, reads it again, and says what is wrong: the dearest first,
each finding with its evidence and the changes that would mend it. Nothing is changed.

EXAMPLES
  nearpath diagnose                                   this machine, all packets, ten seconds
  nearpath diagnose --for 1m --dev eth0 --proto tcp
  nearpath diagnose --netns blue --port 6379
  nearpath diagnose --snapshot host.tar.zst           another machine, from its facts alone
  nearpath diagnose --json | jq '.findings[] | .title'

Measuring takes root and a kernel with BTF; without them the findings rest on facts, and what
could not be seen stands under 'not checked'. The fields of the JSON are described in
docs/json.md.";

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Diagnose {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    timing: Timing,
}

impl Diagnose {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let diagnosis = if self.source.is_live() { self.live()? } else { self.facts_alone()? };
        if self.json {
            output::json(&diagnosis)
        } else {
            output::text(&text::diagnosis(&diagnosis, output::width()))
        }
    }

    fn facts_alone(&self) -> Result<Diagnosis, Failure> {
        if self.filters.is_set() {
            let message = "a tree or snapshot holds no packets, so that filters mean nothing there";
            return Err(Failure::Usage(message.to_owned()));
        }
        let host = self.source.read(all_facts)?;
        let diagnosis = diagnose(&host, None, None);
        Ok(diagnosis.not_measured("only a running machine has packets to measure"))
    }

    fn live(&self) -> Result<Diagnosis, Failure> {
        let interrupt = Interrupt::listen()?;
        let sockets = Wanted { sockets: true, ..Wanted::default() };
        let before = self.source.host(&sockets)?;
        let measured = self.measure(&before, &interrupt)?;
        let memory_of = memory_of_owners(&before);
        let after = self.source.host(&Wanted { memory_of, ..sockets })?;
        Ok(match measured {
            Ok(measurement) => diagnose(&after, Some(&before), Some(&measurement)),
            Err(reason) => diagnose(&after, Some(&before), None).not_measured(&reason),
        })
    }

    /// The measurement, or why there is none; then the time passes all the same, for counters to
    /// become rates.
    fn measure(
        &self,
        host: &Host,
        interrupt: &Interrupt,
    ) -> Result<Result<Measurement, String>, Failure> {
        let filter = self.filters.resolve(host, self.source.netns_inode()?)?;
        let options = self.timing.options(filter);
        let measured = self.timing.measure(&host.topology, options, interrupt);
        if let Err(error) = &measured {
            say(&format!("{error:#}; watching the counters instead"));
            interrupt.wait(self.timing.time.duration);
        }
        if interrupt.happened() {
            say("ended early by a signal");
        }
        Ok(measured.map_err(|error| error.root_cause().to_string()))
    }
}

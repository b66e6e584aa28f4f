//! `nearpath measure answers`: how long servers take from a request to its answer.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Time;
use crate::source::Namespace;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_instruments::answers::{Answers, Options, Server, servers};
use nearpath_model::answers::AnswerMeasurement;
use nearpath_views::text;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure answers                           servers of this network namespace, busiest first
  nearpath measure answers --port 8080 --for 30s     one of them
  nearpath measure answers --json | jq '.servers[] | [.comm, .port, .p50_ns, .p99_ns]'

The time from the last read of a request to the first packet of the answer is spent in the application.
UDP needs Linux 6.3. Requires root. Ctrl-C stops early and prints the results so far.
docs/json.md describes the JSON fields, docs/measuring.md the method.";

/// Arguments of `measure answers`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct AnswersArguments {
    /// Only the server that listens on this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

impl AnswersArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let found = self.namespace.read(|root| Ok((self.servers(root), current_netns(root))))?;
        let (servers, netns) = (found.0?, found.1.inode);
        let netns = netns.map(u32::try_from).transpose().context("network namespace inode")?;
        let btf_file = self.time.btf.clone();
        let mut answers = Answers::new(Options { servers, netns, budget: None, btf_file });
        let each = |now: &AnswerMeasurement| {
            format!("{} answers", now.servers.iter().map(|server| server.answers).sum::<u64>())
        };
        let measurement = self.time.measure(&mut answers, &interrupt, each)?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        if self.json {
            output::json(&measurement)
        } else {
            output::text(&text::answers(&measurement))
        }
    }

    fn servers(&self, root: &Root) -> anyhow::Result<Vec<Server>> {
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let mut servers = servers(&host);
        servers.retain(|server| self.port.is_none_or(|port| port == server.port));
        match (servers.is_empty(), self.port) {
            (true, Some(port)) => {
                Err(anyhow!("nothing listens on port {port} in this network namespace"))
            }
            (true, None) => Err(anyhow!("nothing listens in this network namespace")),
            (false, _) => Ok(servers),
        }
    }
}

//! A configuration of Alertmanager to start from.

use super::Scraped;

/// The file.
pub fn config(_: Scraped) -> String {
    "\
# Written by: nearpath monitor export alertmanager. Check with: amtool check-config FILE
route:
  receiver: nearpath
  group_by: [instance]
  group_wait: 10s
  group_interval: 1m
  repeat_interval: 12h
receivers:
  - name: nearpath
    webhook_configs:
      - url: http://127.0.0.1:9095/    # replace: where alerts go
inhibit_rules:
  # A host that is not there explains itself; and what is critical explains what is a warning.
  - source_matchers: [alertname = NearpathAbsent]
    target_matchers: [alertname =~ \"Nearpath.+\", alertname != NearpathAbsent]
    equal: [instance]
  - source_matchers: [severity = critical, alertname =~ \"Nearpath.+\"]
    target_matchers: [severity = warning, alertname =~ \"Nearpath.+\"]
    equal: [instance, device, queue]
"
    .to_owned()
}

//! A job of Prometheus.

use super::Scraped;

/// The job.
pub fn config(scraped: Scraped) -> String {
    let (note, protocols) = match scraped {
        Scraped::Native => (
            "# Native histograms: Prometheus 3.0 to 3.8 needs --enable-feature=native-histograms; from 3.8\n\
             # 'scrape_native_histograms: true' in this job does the same.\n",
            "[PrometheusProto, OpenMetricsText1.0.0, PrometheusText0.0.4]",
        ),
        Scraped::Text => ("", "[OpenMetricsText1.0.0, PrometheusText0.0.4]"),
    };
    format!(
        "# Written by: nearpath monitor export scrape-config. Check with: promtool check config FILE\n\
         {note}scrape_configs:\n  - job_name: nearpath\n    scrape_interval: 15s\n    \
         scrape_protocols: {protocols}\n    static_configs:\n      - targets: ['127.0.0.1:9477']\n"
    )
}

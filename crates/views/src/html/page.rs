//! The frame of the document: head, style, navigation, sections.

use crate::text::printable;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1a1d21;--paper:#fff;--faint:#5b6570;--line:#d8dde3;--card:#f6f8fa;
--critical:#b3261e;--warning:#8a5a00;--info:#2b6cb0}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#15181c;--faint:#9aa5b1;--line:#343b44;
--card:#1d2228;--critical:#ff8a80;--warning:#f0b849;--info:#7db7ee}
.picture svg{filter:invert(.92) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem 1.5rem 3rem;color:var(--ink);background:var(--paper);
font:16px/1.5 system-ui,'DejaVu Sans',Verdana,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .3rem}p.when,figcaption,.faint{color:var(--faint)}
nav a{margin-right:1rem}a{color:var(--info)}.skip{position:absolute;left:-99rem}.skip:focus{position:static}
.verdict{padding:.8rem 1rem;border-left:.4rem solid var(--info);background:var(--card);font-size:1.1rem}
.verdict.critical,.finding.critical{border-color:var(--critical)}
.verdict.warning,.finding.warning{border-color:var(--warning)}
.finding{border-left:.3rem solid var(--info);background:var(--card);margin:.6rem 0;padding:.5rem 1rem}
.finding summary{cursor:pointer;font-weight:600}.badge{text-transform:uppercase;font-size:.75rem;margin-right:.5rem}
.critical .badge{color:var(--critical)}.warning .badge{color:var(--warning)}.info .badge{color:var(--info)}
table{border-collapse:collapse}caption{text-align:left;color:var(--faint)}
th,td{text-align:left;vertical-align:top;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}
td,th{overflow-wrap:break-word}
figure{margin:.5rem 0}.picture{overflow-x:auto}.picture svg{max-width:100%;height:auto}
pre,code{font:13px/1.45 'DejaVu Sans Mono',ui-monospace,monospace}
pre{overflow-x:auto;background:var(--card);padding:.7rem}
:focus-visible{outline:2px solid var(--info)}
@media print{nav,.skip{display:none}body{max-width:none;padding:0;color:#000;background:#fff}
.picture svg{filter:none}section,.finding,figure{break-inside:avoid}details>*{display:block}}
";

/// A document as it grows.
pub(super) struct Page {
    title: String,
    when: String,
    verdict: String,
    navigation: String,
    sections: String,
}

impl Page {
    pub(super) fn new(title: &str, when: &str) -> Self {
        Self {
            title: escape(title),
            when: escape(when),
            verdict: String::new(),
            navigation: String::new(),
            sections: String::new(),
        }
    }

    /// Sets the answer, which is HTML.
    pub(super) fn verdict(&mut self, html: &str) {
        html.clone_into(&mut self.verdict);
    }

    /// Adds a section; the content is HTML, the id a plain word.
    pub(super) fn section(&mut self, id: &str, title: &str, html: &str) {
        let title = escape(title);
        self.navigation.push_str(&format!("<a href=\"#{id}\">{title}</a>"));
        self.sections.push_str(&format!(
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>{html}</section>\n"
        ));
    }

    pub(super) fn finish(self) -> String {
        let Self { title, when, verdict, navigation, sections } = self;
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"referrer\" content=\"no-referrer\"><link rel=\"icon\" href=\"data:,\">\
             <title>{title}</title><style>{STYLE}</style></head>\n<body>\
             <a class=\"skip\" href=\"#findings\">Skip to the findings</a>\
             <header><h1>{title}</h1><p class=\"when\">{when}</p>{verdict}</header>\n\
             <nav aria-label=\"Sections\">{navigation}</nav>\n<main>\n{sections}</main></body></html>\n"
        )
    }
}

/// Text as HTML: markup and control characters escaped.
pub(super) fn escape(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    let mut escaped = String::with_capacity(text.len());
    for c in lines.join("\n").chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Text of a terminal without its colours.
pub(super) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

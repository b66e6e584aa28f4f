//! An Ansible playbook that installs the script of `sh` and the service of `systemd`, and applies the settings
//! immediately. It is idempotent, and needs only Ansible's built-in modules.

use super::quote::comments;
use super::setting::Setting;
use super::{Context, Document, Exporter, sh, systemd};

pub(super) const EXPORTER: Exporter = Exporter {
    name: "ansible",
    writes: "a playbook that installs the service and its script",
    several: false,
    carries,
    render: |settings, context| {
        vec![Document { name: NAME.to_owned(), text: playbook(settings, context), program: false }]
    },
};

const NAME: &str = "nearpath-tune.yml";

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    // YAML files hold printable characters only.
    let ascii = |text: &str| text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    let target = setting.change.target.to_string();
    let names = setting.interrupt_name().into_iter().chain([target.as_str()]);
    if names.into_iter().all(ascii) {
        sh::carries(setting)
    } else {
        Err("a name in it has unprintable characters")
    }
}

fn playbook(settings: &[Setting<'_>], context: &Context) -> String {
    let title = [
        "Settings by nearpath, for hosts of this inventory with the same hardware:",
        "'ansible-playbook -i INVENTORY nearpath-tune.yml'.",
    ];
    let lines = title.into_iter().chain(context.left_out.iter().map(String::as_str));
    let all: Vec<&Setting<'_>> = settings.iter().collect();
    let service = block(&systemd::service(&all, context).text);
    let script = block(&sh::script(&all, context).text);
    let (to, unit) = (systemd::SCRIPT, systemd::SERVICE);
    format!(
        "---\n{}\
         - name: Keep packets near the CPU that reads them\n\
         \x20 hosts: all\n\
         \x20 become: true\n\
         \x20 tasks:\n\
         \x20   - name: Install the script that applies and undoes the settings\n\
         \x20     ansible.builtin.copy:\n\
         \x20       dest: {to}\n\
         \x20       owner: root\n\
         \x20       group: root\n\
         \x20       mode: \"0755\"\n\
         \x20       content: !unsafe |\n\
         {script}\
         \n\
         \x20   - name: Install the service that applies them at boot\n\
         \x20     ansible.builtin.copy:\n\
         \x20       dest: /etc/systemd/system/{unit}\n\
         \x20       owner: root\n\
         \x20       group: root\n\
         \x20       mode: \"0644\"\n\
         \x20       content: !unsafe |\n\
         {service}\
         \n\
         \x20   - name: Enable the service\n\
         \x20     ansible.builtin.systemd:\n\
         \x20       name: {unit}\n\
         \x20       enabled: true\n\
         \x20       daemon_reload: true\n\
         \n\
         \x20   - name: Apply the settings now\n\
         \x20     ansible.builtin.command: {to} apply\n\
         \x20     register: nearpath_tune\n\
         \x20     changed_when: \"'changed 0 of ' not in nearpath_tune.stdout\"\n",
        comments(lines)
    )
}

/// Text as a YAML block at this depth.
fn block(text: &str) -> String {
    let line = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("{:10}{line}\n", ""),
    };
    text.lines().map(line).collect()
}

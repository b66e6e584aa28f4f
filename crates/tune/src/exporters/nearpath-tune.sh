#!/bin/sh
#@HEADER@
#
#   nearpath-tune.sh apply    apply each setting that is not in effect, and read it back
#   nearpath-tune.sh undo     restore the values from before the first apply of this boot; for settings
#                             that apply found in effect, and for ethtool settings that cannot be read
#                             back as arguments (rules, tables that no argument makes), those at the time
#                             of the export
#   nearpath-tune.sh status   show whether each setting is in effect
#
# The exit status is 1 if a setting cannot be applied or undone, or is not in effect; the other settings
# are processed anyway. undo skips values that were changed externally since, unless --force is given.
# Interrupts are found by the interface of their device and the name of their handler, whatever their
# number. start, stop and verify are synonyms of apply, undo and status, for tuned.

# Functions are called through $action, or not by every set of settings; interface names may contain a $.
# shellcheck disable=SC2317,SC2329,SC2016
set -u
LC_ALL=C
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH
umask 077

# The settings: key of the saved value, form of the value, path, value before, wanted value.
count=@COUNT@
setting() {
    case $1 in
#@SETTINGS@
    esac
}

# Where original values are saved. A reboot removes them together with the settings.
state=${NEARPATH_TUNE_STATE:-/run/nearpath-tune}/$(stat -L -c %i /proc/self/ns/net)

say() { printf '%s\n' "$*"; }
complain() {
    printf 'nearpath-tune: %s\n' "$*" >&2
    failed=1
}

# A setting in a file: key, form, path, before, after.
file() {
    optional=''
    "$action" "$1" "$2" "$3" "$4" "$5" "$3"
}

# The affinity of an interrupt: key, interface, handler, pattern of the handler, before, after.
# The kernel may refuse because it places the interrupt itself; that is reported, but is not a failure.
irq() {
    optional=yes
    if find_irq "$2" "$3" "$4"; then
        "$action" "$1" cpulist "/proc/irq/$irq/smp_affinity_list" "$5" "$6" "interrupt $3 of $2"
    else
        "$action" "$1" cpulist '' "$5" "$6" "interrupt $3 of $2"
    fi
}

# A setting in Open vSwitch's database: key of the saved value, table, record, key, before, after.
ovs() {
    optional=''
    "$action" "$1" ovs "$2 $3 $4" "$5" "$6" "$4 of $2 $3"
}

# An ethtool setting: key, interface, option that shows it, option that sets it, arguments that restore the
# original value, arguments that set the wanted one.
nic() {
    if shown=$(ethtool "$3" "$2" 2>/dev/null); then
        "${action}_nic" "$@"
    else
        case $action in undo) rm -f "$state/$1" ;; *) complain "ethtool $3 $2: not present" ;; esac
    fi
}

# Runs ethtool with space-separated arguments.
ethtool_with() { # option, interface, words
    set -f
    # shellcheck disable=SC2086 # split on purpose; no argument contains a pattern
    said=$(ethtool "$1" "$2" $3 2>&1)
    set -- "$?"
    set +f
    # Older versions fail if nothing changes.
    case $said in *"no "*changed* | *unmodified*) return 0 ;; esac
    return "$1"
}

# Prints the arguments that restore what ethtool shows: option that shows it, what it shows, arguments that set the
# wanted value. Fails if there are none.
words_of() {
    printf '%s\n' "$2" | awk -v option="$1" -v words="$3" '
        function is_word(text) { return text ~ /^[A-Za-z0-9:.-]+$/ && text != "n/a" }
        BEGIN {
            count = split(words, word, " ")
            # What ethtool calls some features (off_flag_def of ethtool.c).
            alias["generic-receive-offload"] = "rx-gro"
            alias["large-receive-offload"] = "rx-lro"
            alias["generic-segmentation-offload"] = "tx-generic-segmentation"
            alias["ntuple-filters"] = "rx-ntuple-filter"
            alias["receive-hashing"] = "rx-hashing"
            alias["rx-checksumming"] = "rx-checksum"
            alias["rx-vlan-offload"] = "rx-vlan-hw-parse"
            alias["tx-vlan-offload"] = "tx-vlan-hw-insert"
        }
        /^Current hardware settings/ { delete value }
        /^Adaptive RX:/ { value["adaptive-rx"] = $3; value["adaptive-tx"] = $5 }
        key { hash = $1; key = 0 }
        /^RSS hash key/ { key = 1 }
        /^ *[0-9]+:/ { for (i = 2; i <= NF; i++) { queue[entries++] = $i; if ($i + 0 > most) most = $i + 0 } }
        /^[ \t]*[A-Za-z]/ {
            name = tolower($1)
            if (sub(/:$/, "", name)) { value[name] = $2; if (name in alias) value[alias[name]] = $2 }
        }
        END {
            if (option == "-n") exit 1
            if (option == "-x" && word[1] == "hkey") {
                if (!is_word(hash)) exit 1
                print "hkey " hash
                exit 0
            }
            if (option == "-x") {
                if (!entries) exit 1
                equal = ordered = 1
                for (i = 0; i < entries; i++) {
                    if (queue[i] != i % (most + 1)) equal = 0
                    if (i && queue[i] + 0 < queue[i - 1] + 0) ordered = 0
                    weight[queue[i] + 0]++
                }
                if (equal) { print "equal " most + 1; exit 0 }
                if (!ordered) exit 1
                line = "weight"
                for (i = 0; i <= most; i++) line = line " " weight[i] + 0
                print line
                exit 0
            }
            for (i = 1; i < count; i += 2) {
                if (!(word[i] in value) || !is_word(value[word[i]])) exit 1
                line = line (i > 1 ? " " : "") word[i] " " value[word[i]]
            }
            print line
        }'
}

# Prints what drivers reset when the channels or rings of an interface change: a kind, a value, and a handler or a
# file of a queue.
parts_of() {
    device=/sys/class/net/$1/device
    case $(readlink "$device/subsystem") in */virtio) device=$device/.. ;; esac
    for its in "$device"/msi_irqs/*; do
        its=${its##*/}
        for handler in "/proc/irq/$its"/*/; do
            handler=${handler%/}
            current "/proc/irq/$its/smp_affinity_list" && printf 'irq %s %s\n' "$value" "${handler##*/}"
        done
    done
    for its in "/sys/class/net/$1/queues"/*/rps_cpus "/sys/class/net/$1/queues"/*/rps_flow_cnt \
        "/sys/class/net/$1/queues"/*/xps_cpus "/sys/class/net/$1/queues"/*/xps_rxqs; do
        current "$its" && printf 'file %s %s\n' "$value" "${its#"/sys/class/net/$1/queues/"}"
    done
}

# Restores such parts, from standard input, as far as they exist: interface. Sets lacks to those that the kernel
# refuses.
restore_parts() {
    lacks=''
    while read -r kind value name; do
        wanted=$value
        case $kind in
        irq) find_irq "$1" "$name" '' && set -- "$1" cpulist "/proc/irq/$irq/smp_affinity_list" ;;
        *) case $name in
            */rps_flow_cnt) set -- "$1" numbers "/sys/class/net/$1/queues/$name" ;;
            *) set -- "$1" mask "/sys/class/net/$1/queues/$name" ;;
            esac ;;
        esac || continue
        current "$3" || continue
        same "$2" "$value" "$wanted" || put "$2" "$3" "$wanted" || lacks="$lacks $name"
    done
}

# What ethtool shows after a change is saved, to recognize the value later in ethtool's own spelling; and before it,
# the arguments that restore this boot's value, and what drivers reset with it.

apply_nic() {
    if [ -e "$state/$1" ] && [ "$(cat "$state/$1")" = "$shown" ]; then return; fi
    first=''
    [ -e "$state/$1" ] || first=yes
    if ! mkdir -p "$state"; then
        complain "ethtool $4 $2: skipped: cannot save the original value in $state"
        return
    fi
    case $4 in -L | -G) parts_of "$2" >"$state/$1.now" ;; esac
    if [ -n "$first" ]; then
        words_of "$3" "$shown" "$6" >"$state/$1.before" || rm -f "$state/$1.before"
        case $4 in -L | -G) cp "$state/$1.now" "$state/$1.parts" ;; esac
        case $4 in -L) words_of -x "$(ethtool -x "$2" 2>/dev/null)" equal >"$state/$1.rss" || rm -f "$state/$1.rss" ;; esac
    fi
    if ethtool_with "$4" "$2" "$6"; then
        made=$(ethtool "$3" "$2" 2>/dev/null)
        printf '%s\n' "$made" >"$state/$1"
        # What still exists keeps its value.
        [ ! -e "$state/$1.now" ] || restore_parts "$2" <"$state/$1.now"
        if [ "$made" != "$shown" ]; then
            changed=$((changed + 1))
            say "ethtool $4 $2: $6"
        elif [ -n "$first" ]; then
            rm -f "$state/$1.before" "$state/$1.parts" "$state/$1.rss"
        fi
    else
        complain "ethtool $4 $2 $6: $said"
        [ -z "$first" ] || rm -f "$state/$1.before" "$state/$1.parts" "$state/$1.rss"
    fi
    rm -f "$state/$1.now"
}

undo_nic() {
    [ -e "$state/$1" ] || return
    before=$5
    [ ! -e "$state/$1.before" ] || before=$(cat "$state/$1.before") || return
    if [ -z "$force" ] && [ "$(cat "$state/$1")" != "$shown" ]; then
        complain "ethtool $3 $2: changed externally; skipped (use --force to overwrite)"
        return
    fi
    case $4 in -L | -G) parts_of "$2" >"$state/$1.now" ;; esac
    if ethtool_with "$4" "$2" "$before"; then
        restored=yes
        if [ -e "$state/$1.parts" ]; then
            # Those that existed until now may have been changed since.
            restore_parts "$2" <"$state/$1.parts"
            restore_parts "$2" <"$state/$1.now"
            [ -z "$lacks" ] || restored=''
        fi
        if [ -e "$state/$1.rss" ]; then
            ethtool_with -X "$2" "$(cat "$state/$1.rss")" || lacks="$lacks indirection table" restored=''
        fi
        if [ -z "$restored" ]; then
            complain "ethtool $4 $2 $before: not restored:$lacks"
        else
            rm -f "$state/$1" "$state/$1.before" "$state/$1.parts" "$state/$1.rss"
            changed=$((changed + 1))
            say "ethtool $4 $2: $before"
        fi
    else
        complain "ethtool $4 $2 $before: $said"
    fi
    rm -f "$state/$1.now"
}

status_nic() {
    if [ -e "$state/$1" ] && [ "$(cat "$state/$1")" = "$shown" ]; then
        say "applied      ethtool $4 $2 $6"
    else
        say "not applied  ethtool $4 $2 $6: or not by this script"
        failed=1
    fi
}

# Sets irq to the current number of an interrupt: the device's only one with this name, or the only one whose
# name matches the pattern.
find_irq() {
    irq='' like='' likes=0
    device=/sys/class/net/$1/device
    # The interrupts of a virtio device belong to its parent device.
    case $(readlink "$device/subsystem") in */virtio) device=$device/.. ;; esac
    for its in "$device"/msi_irqs/* "$device/irq"; do
        case $its in
        */msi_irqs/*) its=${its##*/} ;;
        *) its=$(cat "$its" 2>/dev/null) || continue ;;
        esac
        for handler in "/proc/irq/$its"/*/; do
            handler=${handler%/}
            handler=${handler##*/}
            # shellcheck disable=SC2254 # it is a pattern
            case $handler in
            "$2")
                irq=$its
                return 0
                ;;
            $3)
                [ "$its" = "$like" ] || likes=$((likes + 1))
                like=$its
                ;;
            esac
        done
    done
    irq=$like
    [ "$likes" -eq 1 ]
}

# Sets meaning to the canonical form of a value.
mean() {
    meaning=$2
    case $1 in
    mask)
        while :; do
            case $meaning in
            *,*) meaning=${meaning%%,*}${meaning#*,} ;;
            0?*) meaning=${meaning#0} ;;
            *) break ;;
            esac
        done
        ;;
    choice)
        case $meaning in *\[*\]*)
            meaning=${meaning#*\[}
            meaning=${meaning%%\]*}
            ;;
        esac
        ;;
    numbers)
        # shellcheck disable=SC2086 # whitespace between numbers is irrelevant
        set -- $meaning
        meaning=$*
        ;;
    esac
}

# Whether two values are equal.
same() {
    mean "$1" "$2"
    set -- "$1" "$meaning" "$3"
    mean "$1" "$3"
    [ "$2" = "$meaning" ]
}

# Sets value to the contents of a file, or of a key of Open vSwitch: table, record and key, with blanks between them.
current() {
    case $1 in
    '') return 1 ;;
    /*) value=$(cat "$1" 2>/dev/null) ;;
    *)
        set -f
        # shellcheck disable=SC2086 # no name contains a blank
        set -- $1
        set +f
        value=$(ovs-vsctl --no-wait --if-exists get "$1" "$2" "other_config:$3" 2>/dev/null) || return 1
        value=${value#\"}
        value=${value%\"}
        value=${value:-unset}
        ;;
    esac
}

# Sets a key of Open vSwitch: value, table, record, key.
put_ovs() {
    case $1 in
    unset) ovs-vsctl --no-wait remove "$2" "$3" other_config "$4" ;;
    *) ovs-vsctl --no-wait set "$2" "$3" "other_config:$4=\"$1\"" ;;
    esac
}

# Writes a value and reads it back: form, path, value.
put() {
    mean "$1" "$3"
    [ "$1" = choice ] || meaning=$3
    case $2 in
    /*) said=$({ printf '%s\n' "$meaning" >"$2"; } 2>&1) ;;
    *)
        set -f
        # shellcheck disable=SC2086 # no name contains a blank
        said=$(put_ovs "$meaning" $2 2>&1)
        set +f
        ;;
    esac
    if current "$2" && same "$1" "$value" "$3"; then return 0; fi
    [ -n "$said" ] || said="the kernel has '${value-}'"
    return 1
}

# Saves the value from before the first apply: key, value.
remember() {
    [ ! -e "$state/$1" ] || return 0
    mkdir -p "$state" && printf '%s\n' "$2" >"$state/$1.new" && mv "$state/$1.new" "$state/$1"
}

# Arguments of the next three: key, form, path, before, after, name.

apply() {
    if ! current "$3"; then
        complain "$6: not present"
    elif ! same "$2" "$value" "$5"; then
        if ! remember "$1" "$value"; then
            complain "$6: skipped: cannot save the original value in $state"
        elif put "$2" "$3" "$5"; then
            changed=$((changed + 1))
            say "$6: $5"
        elif [ -n "$optional" ]; then
            printf 'nearpath-tune: %s\n' "$6: skipped: $said" >&2
        else
            complain "$6: $said"
        fi
    fi
}

undo() {
    before=$4
    if [ -e "$state/$1" ]; then before=$(cat "$state/$1") || return; fi
    if ! current "$3" || same "$2" "$value" "$before"; then
        rm -f "$state/$1"
    elif [ -z "$force" ] && ! same "$2" "$value" "$5"; then
        # Without a saved value, nothing was applied.
        [ ! -e "$state/$1" ] || complain "$6: changed externally to '$value'; skipped (use --force to overwrite)"
    elif put "$2" "$3" "$before"; then
        changed=$((changed + 1))
        rm -f "$state/$1"
        say "$6: $before"
    else
        complain "$6: $said"
    fi
}

status() {
    if ! current "$3"; then
        say "not present  $6"
        failed=1
    elif same "$2" "$value" "$5"; then
        say "applied      $6"
    else
        say "not applied  $6: it is '$value', not '$5'"
        failed=1
    fi
}

# All settings in order; in reverse order for undo.
all() {
    number=0
    while [ "$number" -lt "$count" ]; do
        number=$((number + 1))
        case $action in
        undo) setting $((count + 1 - number)) ;;
        *) setting "$number" ;;
        esac
    done
}

failed=0 changed=0 force=''
case ${2-} in --force) force=yes ;; esac
case ${1-} in
apply | start) action=apply ;;
undo | stop) action=undo ;;
status | verify) action=status ;;
*)
    say "usage: ${0##*/} apply | undo [--force] | status" >&2
    exit 2
    ;;
esac
all
case $action in status) ;; *) say "changed $changed of $count settings" ;; esac
exit "$failed"

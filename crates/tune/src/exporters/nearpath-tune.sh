#!/bin/sh
#@HEADER@
#
#   nearpath-tune.sh apply    apply each setting that is not in effect, and read it back
#   nearpath-tune.sh undo     restore the values from before the first apply of this boot; for settings
#                             that apply found in effect, the values at the time of the export
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

# What ethtool shows after a change is saved, to recognize the value later in ethtool's own spelling.

apply_nic() {
    if [ -e "$state/$1" ] && [ "$(cat "$state/$1")" = "$shown" ]; then return; fi
    if ! mkdir -p "$state"; then
        complain "ethtool $4 $2: skipped: cannot save the original value in $state"
    elif ethtool_with "$4" "$2" "$6"; then
        made=$(ethtool "$3" "$2" 2>/dev/null)
        printf '%s\n' "$made" >"$state/$1"
        if [ "$made" != "$shown" ]; then
            changed=$((changed + 1))
            say "ethtool $4 $2: $6"
        fi
    else
        complain "ethtool $4 $2 $6: $said"
    fi
}

undo_nic() {
    [ -e "$state/$1" ] || return
    if [ -z "$force" ] && [ "$(cat "$state/$1")" != "$shown" ]; then
        complain "ethtool $3 $2: changed externally; skipped (use --force to overwrite)"
    elif ethtool_with "$4" "$2" "$5"; then
        rm -f "$state/$1"
        changed=$((changed + 1))
        say "ethtool $4 $2: $5"
    else
        complain "ethtool $4 $2 $5: $said"
    fi
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

# Sets value to the contents of a file.
current() {
    [ -n "$1" ] && value=$(cat "$1" 2>/dev/null)
}

# Writes a value and reads it back: form, path, value.
put() {
    mean "$1" "$3"
    [ "$1" = choice ] || meaning=$3
    said=$({ printf '%s\n' "$meaning" >"$2"; } 2>&1)
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

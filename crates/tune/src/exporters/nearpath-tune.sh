#!/bin/sh
#@HEADER@
#
#   nearpath-tune.sh apply    makes each setting that is not made yet, and reads it back
#   nearpath-tune.sh undo     puts back what was there before the first apply of this boot; where
#                             apply found the setting made, what was there when this was exported
#   nearpath-tune.sh status   says of each setting whether it is made
#
# Exit status 1 when a setting could not be made or undone, or is not as it should be; the others are
# made all the same. What somebody else has set since is left alone by undo, unless it is given
# --force. A change of a name or of the number of an interrupt makes no difference: interrupts are
# found by the interface of their device and the name of their handler. start, stop and verify are
# the same as apply, undo and status, as tuned calls them.

# What is called by its name in action, or by no setting; names of interfaces with a $ in them.
# shellcheck disable=SC2317,SC2329,SC2016
set -u
LC_ALL=C
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH
umask 077

# The settings: the name of what is remembered, the form of the value, where it is, the value from
# before, the value that is wanted.
count=@COUNT@
setting() {
    case $1 in
#@SETTINGS@
    esac
}

# Where the values from before are remembered, until the next boot takes them with the settings.
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
# The kernel may place it itself, and refuse; that is told, and no failure.
irq() {
    optional=yes
    if find_irq "$2" "$3" "$4"; then
        "$action" "$1" cpulist "/proc/irq/$irq/smp_affinity_list" "$5" "$6" "interrupt $3 of $2"
    else
        "$action" "$1" cpulist '' "$5" "$6" "interrupt $3 of $2"
    fi
}

# What ethtool sets: key, interface, the option that shows it, the one that sets it, the words that put
# back what was before, those that set what is wanted.
nic() {
    if shown=$(ethtool "$3" "$2" 2>/dev/null); then
        "${action}_nic" "$@"
    else
        case $action in undo) rm -f "$state/$1" ;; *) complain "ethtool $3 $2: it is not there" ;; esac
    fi
}

# Runs ethtool with the words of a text.
ethtool_with() { # option, interface, words
    set -f
    # shellcheck disable=SC2086 # words without blanks, and nothing in them is a pattern
    said=$(ethtool "$1" "$2" $3 2>&1)
    set -- "$?"
    set +f
    # Older ones fail when there is nothing to change.
    case $said in *"no "*changed* | *unmodified*) return 0 ;; esac
    return "$1"
}

# What is shown once it is made is remembered: so it is known again, whatever ethtool calls it.

apply_nic() {
    if [ -e "$state/$1" ] && [ "$(cat "$state/$1")" = "$shown" ]; then return; fi
    if ! mkdir -p "$state"; then
        complain "ethtool $4 $2: left alone, as nothing can be remembered in $state"
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
        complain "ethtool $3 $2: somebody else has set it; left alone without --force"
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
        say "made       ethtool $4 $2 $6"
    else
        say "not made   ethtool $4 $2 $6: or not by this script"
        failed=1
    fi
}

# The number that an interrupt has now, into irq. It is the device's only one of that name, or the
# only one whose name fits the pattern.
find_irq() {
    irq='' like='' likes=0
    device=/sys/class/net/$1/device
    # What virtio has is that of the device below it.
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

# What a text of a form means, whatever its spelling, into meaning.
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
        # shellcheck disable=SC2086 # the blanks between the numbers make no difference
        set -- $meaning
        meaning=$*
        ;;
    esac
}

# Whether two texts of a form mean the same.
same() {
    mean "$1" "$2"
    set -- "$1" "$meaning" "$3"
    mean "$1" "$3"
    [ "$2" = "$meaning" ]
}

# What a file has, into value.
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

# Remembers what was there before the first apply: key, value.
remember() {
    [ ! -e "$state/$1" ] || return 0
    mkdir -p "$state" && printf '%s\n' "$2" >"$state/$1.new" && mv "$state/$1.new" "$state/$1"
}

# Each of these three gets: key, form, path, before, after, name.

apply() {
    if ! current "$3"; then
        complain "$6: it is not there"
    elif ! same "$2" "$value" "$5"; then
        if ! remember "$1" "$value"; then
            complain "$6: left alone, as what is there cannot be remembered in $state"
        elif put "$2" "$3" "$5"; then
            changed=$((changed + 1))
            say "$6: $5"
        elif [ -n "$optional" ]; then
            printf 'nearpath-tune: %s\n' "$6: left as it is: $said" >&2
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
        # Where nothing is remembered, nothing was made.
        [ ! -e "$state/$1" ] || complain "$6: somebody else has set it to '$value'; left alone without --force"
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
        say "not there  $6"
        failed=1
    elif same "$2" "$value" "$5"; then
        say "made       $6"
    else
        say "not made   $6: it is '$value', not '$5'"
        failed=1
    fi
}

# The settings from the first to the last, for undo the other way.
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

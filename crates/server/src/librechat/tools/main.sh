# Runs user.sh with tools that are called outside of this box. A call whose reply is in
# history/ prints it. A call without a reply is written to calls/, and this program ends: the
# code runs again when the replies are there.
__tare_here=$(dirname "$0")
# Calls beside this one may come as well before the end.
__tare_time_for_others=0.2

__tare_call() {
    local name=$1 input=${2-"{}"} key turn reply
    key=$(printf '%s\n%s' "$name" "$input" | sha256sum)
    key=${key%% *}
    exec 9>>"$__tare_here/lock"
    flock 9
    turn=$(cat "$__tare_here/seen.$key" 2>/dev/null || echo 0)
    echo $((turn + 1)) >"$__tare_here/seen.$key"
    reply=$__tare_here/history/$key.$turn
    if [ -f "$reply" ]; then
        exec 9>&-
        cat "$reply"
        return 0
    fi
    if [ -f "$reply.failed" ]; then
        exec 9>&-
        cat "$reply.failed" >&2
        return 1
    fi
    printf '%s\n%s\n%s' "$key" "$name" "$input" >"$__tare_here/calls/$BASHPID"
    exec 9>&-
    sleep "$__tare_time_for_others"
    kill -KILL $$
    sleep 60
}

. "$__tare_here/tools.sh"
. "$__tare_here/user.sh"

# Completes longwatch @VERSION@ in fish. Written by `longwatch completion fish`; write it again after
# an upgrade.

function __longwatch_entries
    set -g __longwatch_commands
    set -g __longwatch_options
    set -g __longwatch_arguments none
    switch "$argv[1]"
@COMMANDS@
    end
end

function __longwatch_value
    switch "$argv[1]"
@VALUES@
    end
end

# The word after an option among the words of the line: `--state-dir DIR` or `--state-dir=DIR`.
function __longwatch_given
    set -l tokens (commandline -opc)
    for i in (seq (count $tokens))
        if test "$tokens[$i]" = "$argv[1]"
            echo -- $tokens[(math $i + 1)]
            return
        else if string match -q -- "$argv[1]=*" $tokens[$i]
            string replace -- "$argv[1]=" '' $tokens[$i]
            return
        end
    end
end

# The programs that have a log in the state directory, or a table in the configuration file.
function __longwatch_names
    set -l config (__longwatch_given --config)
    test -n "$config"; or set config "$LONGWATCH_CONFIG"
    test -n "$config"; or set config longwatch.toml
    set -l state (__longwatch_given --state-dir)
    test -n "$state"; or set state "$LONGWATCH_STATE_DIR"
    if test -z "$state" -a -r "$config"
        set state (sed -nE 's/^state_dir *= *["\']([^"\']*)["\'].*/\1/p' $config)
        if test -n "$state"; and not string match -q '/*' -- $state
            set state (dirname $config)/$state
        end
    end
    test -n "$state"; or set state .longwatch
    for log in $state/logs/*.log
        set -l name (string replace -r '.*/(.*)\.log$' '$1' -- $log)
        test "$name" = watchdog; or echo $name
    end
    if test -r "$config"
        sed -nE 's/^\[(program|worker|container)\."?([A-Za-z0-9_-]+)"?\][[:space:]]*(#.*)?$/\2/p' $config
        grep -qE '^\[runner\]' $config; and echo runner
    end
end

function __longwatch_reply
    switch "$argv[1]"
        case none ''
        case files
            __fish_complete_path "$argv[2]"
        case directories
            __fish_complete_directories "$argv[2]"
        case names
            __longwatch_names | sort -u
        case commands
            __fish_complete_command
        case '*'
            string split ' ' -- $argv[1]
    end
end

function __longwatch_complete
    set -l tokens (commandline -opc)
    set -l current (commandline -ct)
    set -l path longwatch
    __longwatch_entries $path
    set -l i 2
    while test $i -le (count $tokens)
        set -l word $tokens[$i]
        set -l value (__longwatch_value "$path $word")
        if test "$word" = --
            if test $i -lt (count $tokens)
                __longwatch_reply files "$current"
            else
                __longwatch_reply $__longwatch_arguments "$current"
            end
            return
        else if test -n "$value"
            set i (math $i + 1)
            if test $i -gt (count $tokens)
                __longwatch_reply $value "$current"
                return
            end
        else if string match -q -- "$word"\t'*' $__longwatch_commands
            set path "$path $word"
            __longwatch_entries $path
        else if test "$__longwatch_arguments" = commands; and not string match -q -- '-*' $word
            __longwatch_reply files "$current"
            return
        end
        set i (math $i + 1)
    end
    if string match -qr -- '^--[^=]*=' $current
        set -l parts (string split -m 1 = -- $current)
        for word in (__longwatch_reply (__longwatch_value "$path $parts[1]") "$parts[2]")
            echo -- "$parts[1]=$word"
        end
    else if string match -q -- '-*' $current
        printf '%s\n' $__longwatch_options
    else if test -n "$__longwatch_commands"
        printf '%s\n' $__longwatch_commands
    else
        __longwatch_reply $__longwatch_arguments "$current"
    end
end

complete -c longwatch -e
complete -c longwatch -f -a '(__longwatch_complete)'

# Completes longwatch @VERSION@ in bash. Written by `longwatch completion bash`; write it again after
# an upgrade.

_longwatch_entries() {
    commands='' options='' arguments='none'
    case "$1" in
@COMMANDS@
    esac
}

_longwatch_value() {
    value=''
    case "$1" in
@VALUES@
    esac
}

# The word after an option among the words of the line: `--state-dir DIR` or `--state-dir=DIR`.
_longwatch_given() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == "$1" ]]; then
            [[ ${COMP_WORDS[i + 1]} == '=' ]] && i=$((i + 1))
            printf '%s\n' "${COMP_WORDS[i + 1]}"
            return
        fi
    done
}

# The programs that have a log in the state directory, or a table in the configuration file. Other
# files are left out: `compgen -W` runs what is in $(…) in their names.
_longwatch_names() {
    local config state log
    config=$(_longwatch_given --config)
    config=${config:-${LONGWATCH_CONFIG:-longwatch.toml}}
    state=$(_longwatch_given --state-dir)
    state=${state:-$LONGWATCH_STATE_DIR}
    if [[ -z $state && -r $config ]]; then
        state=$(sed -nE 's/^state_dir *= *["'\'']([^"'\'']*)["'\''].*/\1/p' "$config")
        [[ -n $state && $state != /* && $config == */* ]] && state=${config%/*}/$state
    fi
    for log in "${state:-.longwatch}"/logs/*.log; do
        log=${log##*/}
        [[ $log == *[!A-Za-z0-9._-]* || $log == watchdog.log ]] || printf '%s\n' "${log%.log}"
    done
    if [[ -r $config ]]; then
        sed -nE 's/^\[(program|worker|container)\."?([A-Za-z0-9_-]+)"?\][[:space:]]*(#.*)?$/\2/p' "$config"
        grep -qE '^\[runner\]' "$config" && printf 'runner\n'
    fi
}

_longwatch_reply() {
    local IFS=$'\n'
    case "$1" in
    none | '') ;;
    files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$2")) ;;
    directories) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$2")) ;;
    names) COMPREPLY=($(compgen -W "$(_longwatch_names | sort -u)" -- "$2")) ;;
    commands) COMPREPLY=($(compgen -c -- "$2")) ;;
    *) IFS=$' \n'; COMPREPLY=($(compgen -W "$1" -- "$2")) ;;
    esac
}

_longwatch() {
    local path=longwatch current previous i word value commands options arguments
    COMPREPLY=()
    current=${COMP_WORDS[COMP_CWORD]}
    previous=${COMP_WORDS[COMP_CWORD - 1]}
    if [[ $current == '=' ]]; then
        current=''
    elif [[ $previous == '=' ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    _longwatch_entries "$path"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        _longwatch_value "$path $word"
        if [[ $word == '--' ]]; then
            if ((i + 1 < COMP_CWORD)); then _longwatch_reply files "$current"; else _longwatch_reply "$arguments" "$current"; fi
            return
        elif [[ -n $value ]]; then
            [[ ${COMP_WORDS[i + 1]} == '=' ]] && i=$((i + 1))
            i=$((i + 1))
        elif [[ " $commands " == *" $word "* ]]; then
            path="$path $word"
            _longwatch_entries "$path"
        elif [[ $arguments == commands && $word != -* ]]; then
            _longwatch_reply files "$current"
            return
        fi
    done
    _longwatch_value "$path $previous"
    if [[ -n $value ]]; then
        _longwatch_reply "$value" "$current"
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
    else
        _longwatch_reply "$arguments" "$current"
    fi
}

complete -F _longwatch longwatch

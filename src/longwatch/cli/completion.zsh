#compdef longwatch
# Completes longwatch @VERSION@ in zsh. Written by `longwatch completion zsh`; write it again after an
# upgrade.

_longwatch_entries() {
    children=() options=() arguments=none
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
    for ((i = 2; i < CURRENT; i++)); do
        [[ ${words[i]} == "$1" ]] && print -r -- "${words[i + 1]}" && return
        [[ ${words[i]} == "$1="* ]] && print -r -- "${words[i]#*=}" && return
    done
}

# The programs that have a log in the state directory, or a table in the configuration file.
_longwatch_names() {
    local config state
    config=$(_longwatch_given --config)
    config=${config:-${LONGWATCH_CONFIG:-longwatch.toml}}
    state=$(_longwatch_given --state-dir)
    state=${state:-$LONGWATCH_STATE_DIR}
    if [[ -z $state && -r $config ]]; then
        state=$(sed -nE 's/^state_dir *= *["'\'']([^"'\'']*)["'\''].*/\1/p' "$config")
        [[ -n $state && $state != /* && $config == */* ]] && state=${config%/*}/$state
    fi
    names=(${state:-.longwatch}/logs/*.log(N:t:r))
    names=(${names:#watchdog})
    if [[ -r $config ]]; then
        names+=($(sed -nE 's/^\[(program|worker|container)\."?([A-Za-z0-9_-]+)"?\][[:space:]]*(#.*)?$/\2/p' "$config"))
        grep -qE '^\[runner\]' "$config" && names+=(runner)
    fi
    names=(${(u)names})
}

_longwatch_reply() {
    local -a names
    case "$1" in
    none | '') ;;
    files) _files ;;
    directories) _files -/ ;;
    names) _longwatch_names; compadd -a names ;;
    commands) _command_names -e ;;
    *) names=(${=1}); compadd -a names ;;
    esac
}

_longwatch() {
    local path_words=longwatch word value arguments i
    local -a children options  # zsh has a parameter `commands` of its own
    _longwatch_entries $path_words
    for ((i = 2; i < CURRENT; i++)); do
        word=${words[i]}
        _longwatch_value "$path_words $word"
        if [[ $word == '--' ]]; then
            if ((i + 1 < CURRENT)); then _files; else _longwatch_reply $arguments; fi
            return
        elif [[ -n $value ]]; then
            ((i++))
            ((i == CURRENT)) && { _longwatch_reply $value; return }
        elif [[ -n ${(M)children:#$word:*} ]]; then
            path_words="$path_words $word"
            _longwatch_entries $path_words
        elif [[ $arguments == commands && $word != -* ]]; then
            _files
            return
        fi
    done
    if [[ $PREFIX == --*=* ]]; then
        _longwatch_value "$path_words ${PREFIX%%=*}"
        compset -P '*='
        _longwatch_reply $value
    elif [[ $PREFIX == -* ]]; then
        _describe -o option options
    elif ((${#children})); then
        _describe command children
    else
        _longwatch_reply $arguments
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _longwatch "$@"
else
    compdef _longwatch longwatch
fi

package manual

import "strings"

// Shells returns the shells that Script knows.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// The scripts ask the program itself: program complete SHELL -- WORD... prints a candidate a line,
// for zsh and fish with its help after a tab, and at the end ":files" or ":dirs" where the shell
// is to offer names of files. Not every command line that is complete makes one: an error is no
// candidate.
const (
	bashScript = `# bash completion for PROGRAM
_PROGRAM() {
	local line names=
	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:files) names=-f ;;
		:dirs) names=-d ;;
		*) COMPREPLY+=("$line") ;;
		esac
	done < <("${COMP_WORDS[0]}" complete bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	if [ -n "$names" ]; then
		local word=${COMP_WORDS[COMP_CWORD]}
		[ "$word" = = ] && word=
		compopt -o filenames 2>/dev/null
		while IFS= read -r line; do
			COMPREPLY+=("$line")
		done < <(compgen "$names" -- "$word")
	elif [ "${#COMPREPLY[@]}" = 1 ] && [[ ${COMPREPLY[0]} == *= ]]; then
		compopt -o nospace 2>/dev/null
	fi
}
complete -F _PROGRAM PROGRAM
`
	zshScript = `#compdef PROGRAM
# zsh completion for PROGRAM
_PROGRAM() {
	local line names= word help
	local -a candidates
	while IFS= read -r line; do
		case $line in
		:files) names=files ;;
		:dirs) names=dirs ;;
		*)
			word=${line%%$'\t'*} help=
			[[ $line == *$'\t'* ]] && help=${line#*$'\t'}
			candidates+=("${word//:/\\:}${help:+:$help}")
			;;
		esac
	done < <("${words[1]}" complete zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
	(( ${#candidates} )) && _describe PROGRAM candidates
	compset -P '--*='
	case $names in
	files) _files ;;
	dirs) _files -/ ;;
	esac
}
if [ "$funcstack[1]" = _PROGRAM ]; then
	_PROGRAM "$@"
else
	compdef _PROGRAM PROGRAM
fi
`
	fishScript = `# fish completion for PROGRAM
function __PROGRAM_complete
	set -l words (commandline -opc) (commandline -ct)
	set -l word (commandline -ct)
	for line in ($words[1] complete fish -- $words[2..-1] 2>/dev/null)
		switch $line
		case :files
			__fish_complete_path (string replace -r '^--[^=]*=' '' -- $word)
		case :dirs
			__fish_complete_directories (string replace -r '^--[^=]*=' '' -- $word)
		case '*'
			echo $line
		end
	end
end
complete -c PROGRAM -f -a '(__PROGRAM_complete)'
`
)

// Script returns what a shell must read to complete command lines of a program, "" for a shell that
// is not known.
func Script(shell, program string) string {
	text := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[shell]
	return strings.ReplaceAll(text, "PROGRAM", program)
}

// Answer writes candidates as the script of a shell reads them.
func Answer(shell string, all []Candidate, names Names) string {
	var b strings.Builder
	for _, c := range all {
		b.WriteString(c.Word)
		if shell != "bash" && c.Help != "" {
			b.WriteString("\t" + c.Help)
		}
		b.WriteByte('\n')
	}
	switch names {
	case FileNames:
		b.WriteString(":files\n")
	case DirectoryNames:
		b.WriteString(":dirs\n")
	}
	return b.String()
}

package shellwords

import "strings"

// RTPArgument is an argument of RTP-LLM's, "--reuse_cache True" or "--reuse_cache=True".
type RTPArgument struct {
	Name     string // as written, without the value
	Variable string // the variable that it stands for, such as REUSE_CACHE
	Value    string
	HasValue bool
}

// RTPArguments returns the arguments among the words of a command line or script. Every word
// that begins with -- and stands for a variable's name counts as one.
func RTPArguments(words []string) (all []RTPArgument) {
	for i, word := range words {
		a := RTPArgument{Variable: RTPVariable(word)}
		if a.Variable == "" {
			continue
		}
		a.Name, a.Value, a.HasValue = strings.Cut(word, "=")
		if !a.HasValue && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			a.Value, a.HasValue = words[i+1], true
		}
		all = append(all, a)
	}
	return all
}

// RTPVariable returns the variable that an argument of RTP-LLM's stands for, "" if a word is
// none.
func RTPVariable(word string) string {
	name, _, _ := strings.Cut(word, "=")
	name, ok := strings.CutPrefix(name, "--")
	switch name = strings.ToUpper(strings.ReplaceAll(name, "-", "_")); {
	case !ok || !IsVariable(name):
		return ""
	case name == "KVCM_MODEL_SDK_CONFIG":
		return "RECO_MODEL_SDK_CONFIG" // the variable has the older name in all versions
	}
	return name
}

// RTPTrue reports whether RTP-LLM takes the value of a variable or argument for true.
func RTPTrue(value string) bool {
	switch strings.ToLower(value) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// Assignments returns the variables that words set.
func Assignments(words []string) map[string]string {
	set := map[string]string{}
	for _, word := range words {
		if name, value, ok := strings.Cut(word, "="); ok && IsVariable(name) {
			set[name] = value
		}
	}
	return set
}

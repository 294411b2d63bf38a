package manual

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Candidate is a word that may stand where the cursor is.
type Candidate struct {
	Word string
	Help string // one line
}

// Names says which names of files the shell offers beside the candidates.
type Names int

// The kinds of names.
const (
	NoNames Names = iota
	FileNames
	DirectoryNames
)

// Values returns known values of a flag or an argument whose help lists none, such as the
// names of models. Nil means that none are known.
type Values func(*kong.Value) []string

// Complete returns what may stand in place of the last of words, which are those of a command line
// after the program's name. "--flag", "=", "value" is understood like "--flag=value", because bash
// splits it; the candidates are then values alone.
func Complete(app *kong.Node, words []string, values Values) ([]Candidate, Names) {
	if len(words) == 0 {
		words = []string{""}
	}
	last, before := words[len(words)-1], words[:len(words)-1]
	if last == "=" && len(before) > 0 && isLong(before[len(before)-1]) {
		last, before = "", words
	}
	at := walk(app, before)
	switch {
	case at.flag != nil:
		return offer(at.flag.Value, last, "", values)
	case at.ended:
	case strings.HasPrefix(last, "--") && strings.Contains(last, "="):
		name, value, _ := strings.Cut(last, "=")
		if f := find(at.node, name); f != nil && !f.IsBool() {
			return offer(f.Value, value, name+"=", values)
		}
		return nil, NoNames
	case strings.HasPrefix(last, "-"):
		return offerFlags(at.node, last), NoNames
	}
	if len(at.node.Children) > 0 && !at.ended {
		return offerCommands(at.node, last), NoNames
	}
	switch rest := at.node.Positional; {
	case at.node.Name == "help" && at.node.Parent == app:
		return offerCommands(walk(app, at.arguments).node, last), NoNames
	case len(rest) == 0:
		return nil, NoNames
	default:
		return offer(rest[min(len(at.arguments), len(rest)-1)], last, "", values)
	}
}

// place is where a command line has come to.
type place struct {
	node      *kong.Node
	flag      *kong.Flag // whose value is next
	arguments []string
	ended     bool // by --: no flag follows
}

// walk follows words. Those that it does not understand count as arguments.
func walk(app *kong.Node, words []string) place {
	at := place{node: app}
	for _, word := range words {
		switch {
		case at.flag != nil && word == "=":
		case at.flag != nil:
			at.flag = nil
		case at.ended:
			at.arguments = append(at.arguments, word)
		case word == "--":
			at.ended = true
		case strings.HasPrefix(word, "-"):
			if f := find(at.node, word); f != nil && !f.IsBool() && !f.IsCounter() {
				at.flag = f
			}
		default:
			i := slices.IndexFunc(at.node.Children, func(n *kong.Node) bool { return n.Name == word && !n.Hidden })
			if i >= 0 && len(at.arguments) == 0 {
				at.node = at.node.Children[i]
			} else {
				at.arguments = append(at.arguments, word)
			}
		}
	}
	return at
}

func isLong(word string) bool { return strings.HasPrefix(word, "--") && !strings.Contains(word, "=") }

// find returns the flag of a command or of those above it: --data or -h.
func find(n *kong.Node, word string) *kong.Flag {
	for ; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
				return f
			}
		}
	}
	return nil
}

func offerCommands(n *kong.Node, prefix string) (all []Candidate) {
	for _, child := range n.Children {
		if !child.Hidden && strings.HasPrefix(child.Name, prefix) {
			all = append(all, Candidate{child.Name, oneLine(child.Help)})
		}
	}
	return all
}

func offerFlags(n *kong.Node, prefix string) (all []Candidate) {
	for ; n != nil; n = n.Parent {
		for _, f := range flags(n) {
			if strings.HasPrefix("--"+f.Name, prefix) {
				all = append(all, Candidate{"--" + f.Name, oneLine(f.Help)})
			}
		}
	}
	return all
}

// offer returns the values of a flag or an argument that begin with text. before is written in
// front of each.
func offer(v *kong.Value, text, before string, values Values) (all []Candidate, names Names) {
	known := enum(v)
	if known == nil && values != nil {
		known = values(v)
	}
	if v.IsSlice() { // a list: only its last element is not complete
		if at := strings.LastIndexByte(text, ','); at >= 0 && known != nil {
			before, text = before+text[:at+1], text[at+1:]
		}
	}
	for _, value := range known {
		if strings.HasPrefix(value, text) {
			all = append(all, Candidate{Word: before + value})
		}
	}
	if known != nil {
		return all, NoNames
	}
	what := v.Name
	if v.Flag != nil {
		what = v.Flag.PlaceHolder
	}
	switch strings.ToLower(what) {
	case "dir":
		return nil, DirectoryNames
	case "file", "path", "pattern", "name|file", "trace":
		return nil, FileNames
	}
	return nil, NoNames
}

// oneLine returns the first sentence of a help text.
func oneLine(help string) string {
	help = strings.Join(strings.Fields(help), " ")
	if first, _, ok := strings.Cut(help, ". "); ok {
		help = first
	}
	return strings.TrimSuffix(help, ".")
}

// Package manual writes what users read about commands from the commands themselves: completions
// of shells, man pages, and the pages of docs/reference. It knows kong's model of a command tree
// and none of the commands.
package manual

import (
	"strings"

	"github.com/alecthomas/kong"
)

// Commands returns all commands that are not hidden, parents before their children, without the
// application itself.
func Commands(app *kong.Node) (all []*kong.Node) {
	for _, child := range app.Children {
		if !child.Hidden {
			all = append(append(all, child), Commands(child)...)
		}
	}
	return all
}

// flags returns the flags of a command itself that are not hidden.
func flags(n *kong.Node) (all []*kong.Flag) {
	for _, f := range n.Flags {
		if !f.Hidden {
			all = append(all, f)
		}
	}
	return all
}

// flagText writes a flag as it is given: --data=DIR.
func flagText(f *kong.Flag) string {
	text := "--" + f.Name
	if f.Short != 0 {
		text = "-" + string(f.Short) + ", " + text
	}
	if !f.IsBool() && !f.IsCounter() {
		text += "=" + f.FormatPlaceHolder()
	}
	return text
}

// enum returns the values that a flag or an argument may have, nil if they are not listed.
func enum(v *kong.Value) (all []string) {
	if v.Enum == "" {
		return nil
	}
	for _, value := range v.EnumSlice() {
		if value != "" {
			all = append(all, value)
		}
	}
	return all
}

// usage returns how a command is called, with its required flags.
func usage(n *kong.Node) string {
	words := []string{n.FullPath()}
	for _, f := range flags(n) {
		if f.Required {
			words = append(words, flagText(f))
		}
	}
	for _, p := range n.Positional {
		words = append(words, p.Summary())
	}
	if len(n.Children) > 0 {
		words = append(words, "<command>")
	}
	return strings.Join(append(words, "[flags]"), " ")
}

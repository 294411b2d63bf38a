package manual

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// Page is a man page.
type Page struct {
	Name string // kv3fs-bench-ring.1
	Text string // in the man macros of roff
}

// About is what a man page says besides the commands themselves.
type About struct {
	Version string
	Date    string // of the version: 2026-11-27
	Home    string // the project's page
	Exit    [][2]string
	// Configuration is the command whose flags are the keys of a configuration file, and its path.
	Configuration string
	File          string
	// IsKey reports whether a flag is such a key.
	IsKey func(*kong.Flag) bool
}

// Pages returns a man page for each command, and for those above, and one for the configuration
// file.
func Pages(app *kong.Node, about About) (all []Page) {
	all = append(all, page(app, about))
	for _, n := range Commands(app) {
		all = append(all, page(n, about))
		if n.Path() == about.Configuration {
			all = append(all, filePage(app, n, about))
		}
	}
	return all
}

// pageName returns the name of a command's page, without its section.
func pageName(n *kong.Node) string { return strings.ReplaceAll(n.FullPath(), " ", "-") }

func page(n *kong.Node, about About) Page {
	var b strings.Builder
	name := pageName(n)
	head(&b, name, "1", about)
	section(&b, "NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(name), roff(lower(oneLine(n.Help))))
	section(&b, "SYNOPSIS")
	fmt.Fprintf(&b, ".nh\n.B %s\n.hy\n", roff(usage(n)))
	section(&b, "DESCRIPTION")
	text(&b, n.Help)
	if n.Detail != "" {
		b.WriteString(".PP\n")
		text(&b, n.Detail)
	}
	if len(n.Positional) > 0 {
		section(&b, "ARGUMENTS")
		for _, p := range n.Positional {
			item(&b, p.Summary(), p.Help)
		}
	}
	if all := flags(n); len(all) > 0 {
		section(&b, "OPTIONS")
		for _, f := range all {
			item(&b, flagText(f), flagHelp(f))
		}
	}
	if len(n.Children) > 0 {
		section(&b, "COMMANDS")
		for _, c := range Commands(n) {
			if len(c.Children) == 0 {
				item(&b, c.Path(), c.Help)
			}
		}
	}
	if len(about.Exit) > 0 {
		section(&b, "EXIT STATUS")
		for _, e := range about.Exit {
			item(&b, e[0], e[1])
		}
	}
	also(&b, n, about)
	return Page{name + ".1", b.String()}
}

// filePage describes the configuration file of a command.
func filePage(app, n *kong.Node, about About) Page {
	var b strings.Builder
	name := app.Name + ".yaml"
	head(&b, name, "5", about)
	section(&b, "NAME")
	fmt.Fprintf(&b, "%s \\- configuration of %s\n", roff(name), roff(n.FullPath()))
	section(&b, "SYNOPSIS")
	fmt.Fprintf(&b, ".I %s\n", roff(about.File))
	section(&b, "DESCRIPTION")
	text(&b, "A YAML file with one mapping. A key is a flag of "+n.FullPath()+", without the dashes. The environment and the command line override it.")
	b.WriteString(".PP\n")
	text(&b, n.FullPath()+" --check --config "+about.File+" finds mistakes and prints the values in effect.")
	section(&b, "KEYS")
	for _, f := range flags(n) {
		if about.IsKey(f) {
			item(&b, f.Name, flagHelp(f))
		}
	}
	also(&b, n, about)
	return Page{name + ".5", b.String()}
}

// flagHelp is a flag's help with its values, its default and its variable.
func flagHelp(f *kong.Flag) string {
	help := f.Help
	if values := enum(f.Value); values != nil {
		help += " One of " + strings.Join(values, ", ") + "."
	}
	if f.Default != "" && !f.IsBool() && !strings.Contains(f.Help, "Default: ") {
		help += " Default: " + f.Default + "."
	}
	if len(f.Envs) > 0 {
		help += " Environment: " + strings.Join(f.Envs, ", ") + "."
	}
	return help
}

func head(b *strings.Builder, name, section string, about About) {
	fmt.Fprintf(b, ".TH \"%s\" %s \"%s\" \"kv3fs %s\"\n", roff(strings.ToUpper(name)), section, about.Date, roff(about.Version))
	b.WriteString(".ad l\n")
}

func section(b *strings.Builder, title string) { b.WriteString(".SH " + title + "\n") }

// item is a word with its explanation.
func item(b *strings.Builder, word, help string) {
	fmt.Fprintf(b, ".TP\n.B %s\n", roff(word))
	text(b, help)
}

// text writes paragraphs. Lines that begin with spaces stay as they are, as in kong's own help.
func text(b *strings.Builder, s string) {
	verbatim := false
	for i, line := range strings.Split(strings.TrimSpace(s), "\n") {
		indented := strings.HasPrefix(line, "  ") || verbatim && line == ""
		switch {
		case indented && !verbatim:
			b.WriteString(".RS 2\n.nf\n")
		case !indented && verbatim:
			b.WriteString(".fi\n.RE\n")
		}
		verbatim = indented
		switch {
		case line == "" && verbatim:
			b.WriteString("\n")
		case line == "":
			if i > 0 {
				b.WriteString(".PP\n")
			}
		default:
			b.WriteString(roff(strings.TrimSpace(line)) + "\n")
		}
	}
	if verbatim {
		b.WriteString(".fi\n.RE\n")
	}
}

func also(b *strings.Builder, n *kong.Node, about About) {
	section(b, "SEE ALSO")
	var names []string
	if n.Parent != nil {
		names = append(names, pageName(n.Parent)+"(1)")
	}
	for _, c := range n.Children {
		if !c.Hidden {
			names = append(names, pageName(c)+"(1)")
		}
	}
	if n.Path() == about.Configuration {
		names = append(names, "kv3fs.yaml(5)")
	}
	for _, name := range append(names, about.Home) {
		b.WriteString(".br\n" + roff(name) + "\n")
	}
}

// roff escapes a line of text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\(ga", "~", `\(ti`, "^", `\(ha`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// lower makes the first letter small, unless the word is an abbreviation.
func lower(s string) string {
	if len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:min(1, len(s))]) + s[min(1, len(s)):]
}

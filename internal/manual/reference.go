package manual

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// generated begins every page of the reference.
const generated = "<!-- Made by `make reference` from the code. Do not edit. -->\n\n"

// CommandsPage returns docs/reference/commands.md.
func CommandsPage(app *kong.Node, about About) string {
	var b strings.Builder
	b.WriteString("# Commands and flags\n\n" + generated)
	b.WriteString(strings.Join(strings.Fields(app.Help), " ") + " A flag of the command line counts more than its variable, and a variable more than the configuration file.\n\n")
	b.WriteString("| command | what it does |\n|---|---|\n")
	for _, n := range Commands(app) {
		if len(n.Children) == 0 {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", n.FullPath(), anchor(n.FullPath()), cell(n.Help))
		}
	}
	b.WriteString("\n## Exit statuses\n\n| status | meaning |\n|---|---|\n")
	for _, e := range about.Exit {
		fmt.Fprintf(&b, "| %s | %s |\n", e[0], cell(e[1]))
	}
	for _, n := range Commands(app) {
		if len(n.Children) == 0 {
			command(&b, n)
		}
	}
	return b.String()
}

func command(b *strings.Builder, n *kong.Node) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", n.FullPath(), strings.TrimSpace(n.Help))
	fmt.Fprintf(b, "```\n%s\n```\n\n", usage(n))
	markdown(b, n.Detail)
	if len(n.Positional) > 0 {
		b.WriteString("| argument | meaning |\n|---|---|\n")
		for _, p := range n.Positional {
			fmt.Fprintf(b, "| `%s` | %s |\n", code(p.Summary()), cell(p.Help))
		}
		b.WriteString("\n")
	}
	all := flags(n)
	if len(all) == 0 {
		return
	}
	b.WriteString("| flag | meaning | default | variable |\n|---|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", code(flagText(f)), cell(valuesHelp(f)), defaultCell(f), codeCell(strings.Join(f.Envs, ", ")))
	}
}

// ConfigurationPage returns docs/reference/configuration.md: the keys of the configuration files of
// the commands that read one.
func ConfigurationPage(app *kong.Node, about About, reads func(*kong.Node) bool) string {
	var b strings.Builder
	b.WriteString("# Keys of configuration files\n\n" + generated)
	b.WriteString("A configuration file is YAML with one mapping, named by `--config`. A key is a flag without its dashes; the environment and the command line override it. `--check` prints the values in effect and where each comes from.\n")
	for _, n := range Commands(app) {
		if len(n.Children) > 0 || !reads(n) {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| key | meaning | default |\n|---|---|---|\n", n.FullPath())
		for _, f := range flags(n) {
			if about.IsKey(f) {
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, cell(valuesHelp(f)), defaultCell(f))
			}
		}
	}
	return b.String()
}

func valuesHelp(f *kong.Flag) string {
	if values := enum(f.Value); values != nil {
		return f.Help + " One of " + strings.Join(values, ", ") + "."
	}
	return f.Help
}

func defaultCell(f *kong.Flag) string {
	switch {
	case f.Required:
		return "required"
	case f.IsBool() || f.Default == "":
		return ""
	}
	return codeCell(f.Default)
}

// markdown writes a help text. Indented lines are code.
func markdown(b *strings.Builder, help string) {
	help = strings.TrimSpace(help)
	if help == "" {
		return
	}
	inCode := false
	lines := strings.Split(help, "\n")
	for i, line := range lines {
		indented := strings.HasPrefix(line, "  ")
		if line == "" && inCode && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ") {
			indented = true
		}
		switch {
		case indented && !inCode:
			b.WriteString("```\n")
		case !indented && inCode:
			b.WriteString("```\n")
		}
		inCode = indented
		if indented {
			b.WriteString(strings.TrimPrefix(line, "  ") + "\n")
		} else {
			b.WriteString(escape(line) + "\n")
		}
	}
	if inCode {
		b.WriteString("```\n")
	}
	b.WriteString("\n")
}

// cell writes text into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(escape(strings.Join(strings.Fields(text), " ")), "|", `\|`)
}

// escape keeps what Markdown would take for its own.
func escape(text string) string {
	return strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`, "`", "\\`").Replace(text)
}

// code writes text for backquotes in a table.
func code(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func codeCell(text string) string {
	if text == "" {
		return ""
	}
	return "`" + code(text) + "`"
}

func anchor(title string) string { return strings.ReplaceAll(strings.ToLower(title), " ", "-") }

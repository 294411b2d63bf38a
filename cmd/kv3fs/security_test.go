package main

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const repository = "../.."

// flagDefaults returns, for each flag of serve, what its help says of the default.
func flagDefaults(t *testing.T) map[string]string {
	t.Helper()
	app, err := newParser(&flagValues{}, io.Discard, &teller{stderr: io.Discard}, func(bool) context.Context { return t.Context() })
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`Default: (.*?)\.?$`)
	defaults := map[string]string{}
	for _, node := range app.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, flag := range node.Flags {
			defaults[flag.Name] = flag.Default
			if m := said.FindStringSubmatch(flag.Help); m != nil {
				defaults[flag.Name] = m[1]
			}
		}
	}
	return defaults
}

// tableRows returns the cells of all rows of the tables below a heading.
func tableRows(t *testing.T, text, heading string) (rows [][]string) {
	t.Helper()
	_, after, found := strings.Cut(text, "\n"+heading+"\n")
	section, _, _ := strings.Cut(after, "\n## ")
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if !found || len(rows) < 2 {
		t.Fatalf("docs/security.md has no table below %q", heading)
	}
	return rows[1:]
}

// docs/security.md has every limit with the default that --help prints, bounds that are as in
// the code, and tests that exist.
func TestLimitsInTheDocument(t *testing.T) {
	content, err := os.ReadFile(repository + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	defaults := flagDefaults(t)

	named := map[string]bool{}
	for _, cells := range tableRows(t, text, "## Limits") {
		flag := strings.Trim(cells[1], "`-")
		named[flag] = true
		want, ok := defaults[flag]
		if got := strings.ReplaceAll(cells[2], "`", ""); !ok || got != want {
			t.Errorf("docs/security.md: --%s has the default %q, and serve --help says %q", flag, got, want)
		}
		if !strings.Contains(cells[len(cells)-1], "`Test") {
			t.Errorf("docs/security.md: --%s has no test", flag)
		}
	}
	for flag := range defaults {
		if !named[flag] && (strings.HasPrefix(flag, "limit-") || strings.HasPrefix(flag, "pages-") && strings.Contains(flag, "memory") || flag == "pages-connections") {
			t.Errorf("docs/security.md has no row for --%s", flag)
		}
	}

	for _, cells := range tableRows(t, text, "## Fixed bounds") {
		file, line, ok := strings.Cut(strings.Trim(cells[2], "`"), ": ")
		code, err := os.ReadFile(filepath.Join(repository, file))
		if !ok || err != nil {
			t.Errorf("docs/security.md: %q is no file and line: %v", cells[2], err)
			continue
		}
		spaces := regexp.MustCompile(`[ \t]+`)
		if !strings.Contains(spaces.ReplaceAllString(string(code), " "), line) {
			t.Errorf("docs/security.md: %s has no %q", file, line)
		}
	}

	tests := testNames(t)
	for _, m := range regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)").FindAllStringSubmatch(text, -1) {
		if !tests[m[1]] {
			t.Errorf("docs/security.md names %s, which does not exist", m[1])
		}
	}
}

// testNames returns the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	pattern := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range []string{"cmd", "internal", "usrbio", "kvstore"} {
		err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			for _, m := range pattern.FindAllSubmatch(code, -1) {
				names[string(m[1])] = string(m[1]) != "TestMain"
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

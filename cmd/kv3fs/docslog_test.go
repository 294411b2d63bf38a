package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every log line that the documents for operators name is one that the code writes.
func TestLogLinesInDocuments(t *testing.T) {
	var code strings.Builder
	for _, root := range []string{".", "../../internal"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			code.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := []*regexp.Regexp{
		regexp.MustCompile(`\bmsg="([^"]+)"`), regexp.MustCompile(`\bmsg=([a-z]+)`), regexp.MustCompile(`"msg":"([^"]+)"`),
		regexp.MustCompile("the log, `([^`]+)`"), regexp.MustCompile("`([^`]+)` in the log"),
		regexp.MustCompile("`([a-z]+(?: [a-z']+){2,})` (?:says|is said|once it)"), // what a line says
		regexp.MustCompile("logged as `([^`]+)`"),
		regexp.MustCompile("(?i)the lines? `([^`]+)`"),
	}
	seen := 0
	for _, name := range []string{"logs.md", "operations.md", "troubleshooting.md"} {
		text, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range named {
			for _, m := range r.FindAllSubmatch(text, -1) {
				seen++
				literal := regexp.MustCompile(`"[^"\n]*\b` + regexp.QuoteMeta(string(m[1])) + `\b[^"\n]*"`)
				if !literal.MatchString(code.String()) {
					t.Errorf("docs/%s names the log line %q, which the code does not have", name, m[1])
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d log lines were found in the documents", seen)
	}
}

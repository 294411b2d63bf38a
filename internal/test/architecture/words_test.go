package architecture

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ownWords maps words of our own to the field's words, which replaced them.
var ownWords = map[string]string{
	"door": "server", "doors": "servers",
	"crew": "worker pool", "crews": "worker pools",
	"desk": "registration", "desks": "registrations",
	"book": "page index, allocator or checksum log", "books": "page indexes or checksum logs",
	"asker": "caller", "askers": "callers",
	"hearsay": "untrusted input",
	"he":      "it (a process) or they (a person)", "him": "it or them", "his": "its or their",
}

var (
	wordPattern = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
	textFiles   = []string{".go", ".c", ".h", ".py", ".pyi", ".md", ".sh", ".yml", ".yaml", ".toml", ".html", ".service", ".txt", ""}
)

// notOurs are paths whose words are not ours to choose: facts about upstream, test
// inputs, what is built, and the list above.
var notOurs = []string{".git", "bin", "build", "dist", "venv", "__pycache__", "testdata", "docs/spec", "LICENSE", "internal/test/architecture"}

// findOwnWords names every line of the text that has a word of ours.
func findOwnWords(file, text string) []string {
	var found []string
	for n, line := range strings.Split(text, "\n") {
		for _, word := range wordPattern.FindAllString(line, -1) {
			if instead, ours := ownWords[strings.ToLower(word)]; ours {
				found = append(found, fmt.Sprintf("%s:%d: %q; write %s", file, n+1, word, instead))
			}
		}
	}
	return found
}

func TestWords(t *testing.T) {
	read := 0
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(repository, path)
		if err != nil {
			return err
		}
		if slices.Contains(notOurs, rel) || slices.Contains(notOurs, d.Name()) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !slices.Contains(textFiles, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for _, f := range append(findOwnWords(rel, string(text)), findOwnWords("the name of "+rel, filepath.Base(rel))...) {
			t.Error(f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 500 {
		t.Errorf("only %d files were read", read)
	}
}

func TestPlantedWords(t *testing.T) {
	for text, want := range map[string]int{
		"// the door opens": 1, "func newDesk() *Desk": 2, "pageBook.Ask": 1, "a process and his rings": 1,
		"bookkeeping, outdoors, crewed, the theme": 0, "HE is shouting": 1,
	} {
		if got := findOwnWords("x.go", text); len(got) != want {
			t.Errorf("%q: %q; want %d", text, got, want)
		}
	}
}

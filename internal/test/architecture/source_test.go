package architecture

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module     = "github.com/kv3fs/kv3fs/"
	repository = "../../.."
)

// source is one package's files without its tests.
type source struct {
	path  string // below the module, e.g. internal/shm
	files []*ast.File
}

// imports returns what the package imports; packages of this module are named by
// their path below it.
func (s source) imports() []string {
	var all []string
	for _, f := range s.files {
		for _, spec := range f.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			all = append(all, strings.TrimPrefix(name, module))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// command reports whether the package is a program.
func (s source) command() bool { return strings.HasPrefix(s.path, "cmd/") }

// parse reads every package of the module at root, in the order of their paths.
func parse(t *testing.T, root string) []source {
	t.Helper()
	byPath := map[string]*source{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != root) {
			return filepath.SkipDir
		}
		if d.IsDir() && file != root {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own, with rules of its own
			}
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if byPath[rel] == nil {
			byPath[rel] = &source{path: rel}
		}
		byPath[rel].files = append(byPath[rel].files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []source
	for _, s := range byPath {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b source) int { return cmp.Compare(a.path, b.path) })
	return all
}

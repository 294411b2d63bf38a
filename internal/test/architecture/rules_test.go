package architecture

import (
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

const module = "github.com/kv3fs/kv3fs/"

// room is one package's files, tests left out.
type room struct {
	path  string // below the module, e.g. internal/shm
	files []*ast.File
}

// imports are the room's imports, siblings below the module's path.
func (r room) imports() []string {
	var all []string
	for _, f := range r.files {
		for _, spec := range f.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			all = append(all, strings.TrimPrefix(name, module))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rooms parses every package below root.
func rooms(t *testing.T, root string) []room {
	t.Helper()
	byPath := map[string]*room{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, filepath.Dir(file))
		rel = filepath.ToSlash(rel)
		if byPath[rel] == nil {
			byPath[rel] = &room{path: rel}
		}
		byPath[rel].files = append(byPath[rel].files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []room
	for _, r := range byPath {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b room) int { return strings.Compare(a.path, b.path) })
	return all
}

// violations names every breach of the rules.
func violations(all []room) []string {
	var found []string
	breach := func(r room, what string) { found = append(found, r.path+": "+what) }
	for _, r := range all {
		imports := r.imports()
		for _, name := range imports {
			switch {
			case name == "unsafe" && r.path != "internal/shm":
				breach(r, "imports unsafe; only internal/shm may")
			case name == "C":
				breach(r, "uses cgo")
			}
			if reason, ok := fences[r.path][name]; ok {
				breach(r, "imports "+name+": "+reason)
			}
			if pure[r.path] && strings.HasPrefix(name, "internal/") {
				breach(r, "imports "+name+", but is pure")
			}
			if name == "internal/daemon" && r.path != "cmd/kv3fs" {
				breach(r, "imports internal/daemon; only cmd/kv3fs may")
			}
		}
		for _, f := range r.files {
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					breach(r, "has an init function")
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Exit" {
					if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "os" && !strings.HasPrefix(r.path, "cmd/") {
						breach(r, "calls os.Exit; only cmd may")
					}
				}
				return true
			})
		}
	}
	return found
}

// fences say which packages a room must not know, and why.
var fences = map[string]map[string]string{
	"internal/fs/tree":             {"internal/fs/fuseserver": "the tree knows no FUSE", "internal/fs/ringserver": "the tree knows no rings"},
	"internal/fs/fuseserver":       {"internal/fs/ringserver": "no server calls another"},
	"internal/fs/ringserver":       {"internal/fs/fuseserver": "no server calls another", "internal/fs/tree": "the ring server gets its files from the daemon"},
	"internal/fs/controldir":       {"internal/fs/ringserver": "it sees the ring server as a Registry", "internal/fs/tree": "it sees the tree as a Remover"},
	"internal/host":                {"internal/advise/doctor": "facts know no judgements"},
	"internal/advise/model":        {"os": "a shape is arithmetic"},
	"internal/advise/doctor":       {"internal/fs/fuseserver": "it probes a mount as clients do"},
	"internal/advise/engineconfig": {"os": "it knows engines, not this host"},
	"internal/advise/prefill":      {"os": "it is arithmetic"},
}

// pure rooms import no sibling.
var pure = map[string]bool{"internal/wire": true, "internal/spelling": true}

func TestRulesOfTheHouse(t *testing.T) {
	all := rooms(t, "../../..")
	for _, v := range violations(all) {
		t.Error(v)
	}
	// A fence around nothing protects nothing.
	for name := range fences {
		if !slices.ContainsFunc(all, func(r room) bool { return r.path == name }) {
			t.Errorf("fence around %s, which does not exist", name)
		}
	}
}

// Every rule catches its breach.
func TestRulesCatch(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"internal/fs/tree/a.go":       `package stage; import _ "github.com/kv3fs/kv3fs/internal/fs/ringserver"`,
		"internal/wire/a.go":          `package wire; import _ "github.com/kv3fs/kv3fs/internal/shm"`,
		"internal/fs/ringserver/a.go": `package rings; import _ "unsafe"`,
		"internal/x/a.go":             `package x; import "os"; func init() { os.Exit(1) }`,
		"internal/y/a.go":             `package y; import "C"`,
		"internal/z/a.go":             `package z; import _ "github.com/kv3fs/kv3fs/internal/daemon"`,
		"internal/ok/a.go":            `package ok; import _ "os"`,
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"internal/fs/ringserver: imports unsafe; only internal/shm may",
		"internal/fs/tree: imports internal/fs/ringserver: the tree knows no rings",
		"internal/wire: imports internal/shm, but is pure",
		"internal/x: has an init function",
		"internal/x: calls os.Exit; only cmd may",
		"internal/y: uses cgo",
		"internal/z: imports internal/daemon; only cmd/kv3fs may",
	}
	if got := violations(rooms(t, root)); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

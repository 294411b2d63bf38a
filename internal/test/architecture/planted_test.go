package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// plant returns the packages of the repository with one more file in one of them.
func plant(t *testing.T, all []source, path, text string) []source {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "planted.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	planted := slices.Clone(all)
	for i, s := range planted {
		if s.path == path {
			planted[i].files = append(slices.Clone(s.files), f)
			return planted
		}
	}
	return append(planted, source{path: path, files: []*ast.File{f}})
}

// added returns what after has and before has not.
func added(before, after []string) []string {
	return slices.DeleteFunc(slices.Clone(after), func(s string) bool { return slices.Contains(before, s) })
}

// Each kind of violation, planted into the tree as it is, is found and named.
func TestPlantedCode(t *testing.T) {
	all, list := parse(t, repository), readAllowList(t)
	check := func(all []source) []string { return append(list.compare(all), breaches(all)...) }
	before := check(all)
	for name, c := range map[string]struct {
		path, text string
		want       []string
	}{
		"a store imports another": {
			"kvstore/internal/segment", `package segment; import _ "github.com/kv3fs/kv3fs/kvstore/internal/cache"`,
			[]string{"kvstore/internal/segment: may not import kvstore/internal/cache"},
		},
		"HTTP below the page service": {
			"internal/pageservice/journal", `package journal; import _ "net/http"`,
			[]string{"internal/pageservice/journal: may not import net/http"},
		},
		"log.Fatal": {
			"internal/fs/tree", `package tree; import "log"; func die() { log.Fatal("x") }`,
			[]string{"internal/fs/tree: may not import log", "internal/fs/tree: calls log.Fatal; only cmd may end the process"},
		},
		"os.Exit": {
			"internal/daemon", `package daemon; import "os"; func die() { os.Exit(1) }`,
			[]string{"internal/daemon: calls os.Exit; only cmd may end the process"},
		},
		"a global that is assigned": {
			"internal/fs/tree", `package tree; var planted = 1; func change() { planted = 2 }`,
			[]string{"internal/fs/tree: has a mutable global: planted"},
		},
		"a global without a value": {
			"internal/fs/tree", `package tree; var planted map[string]int`,
			[]string{"internal/fs/tree: has a mutable global: planted"},
		},
		"a global map that grows": {
			"internal/fs/tree", `package tree; var planted = map[string]int{}; func change() { planted["a"]++ }`,
			[]string{"internal/fs/tree: has a mutable global: planted"},
		},
		"a global whose address is taken": {
			"internal/fs/tree", `package tree; var planted = 1; func leak() *int { return &planted }`,
			[]string{"internal/fs/tree: has a mutable global: planted"},
		},
		"a global lock": {
			"internal/fs/tree", `package tree; import "sync"; var planted = sync.Mutex{}`,
			[]string{"internal/fs/tree: has a mutable global: planted"},
		},
		"traces know the ring server": {
			"internal/bench/workload", `package workload; import _ "github.com/kv3fs/kv3fs/internal/fs/ringserver"`,
			[]string{"internal/bench/workload: may not import internal/fs/ringserver"},
		},
		"the contract of stores imports a client": {
			"kvstore/internal/kv", `package kv; import _ "github.com/kv3fs/kv3fs/usrbio"`,
			[]string{"kvstore/internal/kv: may not import usrbio"},
		},
		"shm imports wire": {
			"internal/shm", `package shm; import _ "github.com/kv3fs/kv3fs/internal/wire"`,
			[]string{"internal/shm: may not import internal/wire"},
		},
		"unsafe": {
			"internal/fs/ringserver", `package ringserver; import _ "unsafe"`,
			[]string{"internal/fs/ringserver: may not import unsafe"},
		},
		"cgo": {
			"usrbio", `package usrbio; import "C"`,
			[]string{"usrbio: may not import C"},
		},
		"a third party that is not listed": {
			"internal/wire", `package wire; import _ "github.com/goccy/go-yaml"`,
			[]string{"internal/wire: may not import github.com/goccy/go-yaml"},
		},
		"a wall clock between hosts": {
			"internal/pageservice/forward", `package forward; import "time"; func planted() bool { return time.Now().UnixNano() > 0 }`,
			[]string{"internal/pageservice/forward: uses UnixNano: wall clocks jump, and hosts' differ; host.SinceBoot and times of one process do not"},
		},
		"a time in a record of a host": {
			"internal/cluster", "package cluster; import \"time\"; type planted struct { At time.Time `json:\"at\"` }",
			[]string{"internal/cluster: writes a time: wall clocks jump, and hosts' differ: `json:\"at\"`"},
		},
		"init": {
			"usrbio", `package usrbio; func init() {}`,
			[]string{"usrbio: has an init function"},
		},
		"a context in a struct": {
			"usrbio", `package usrbio; import "context"; type planted struct { ctx context.Context }`,
			[]string{"usrbio: keeps a context in a struct without saying why: ctx"},
		},
		"a new package": {
			"internal/planted", `package planted`,
			[]string{"internal/planted: not in imports.txt", "internal/planted: has no package comment"},
		},
		"a package comment about something else": {
			"internal/planted", "// What is planted here.\npackage planted",
			[]string{"internal/planted: not in imports.txt", `internal/planted: its package comment does not begin with "Package planted "`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := added(before, check(plant(t, all, c.path, c.text))); !slices.Equal(got, c.want) {
				t.Errorf("found %q; want %q", got, c.want)
			}
		})
	}
	t.Run("what is allowed", func(t *testing.T) {
		fine := `package tree
import ("errors"; "os"; "regexp"; "context")
var errPlanted = errors.New("x")
var names = map[string]int{"a": 1}
var pattern = regexp.MustCompile("a")
var _ error = errPlanted
type planted struct {
	ctx context.Context // ends when the planted thing is closed
}
func use(p *planted) int { names := map[string]int{}; names["b"] = 1; _ = os.Getpid(); return names["a"] + len(pattern.String()) }`
		if got := added(before, check(plant(t, all, "internal/fs/tree", fine))); len(got) > 0 {
			t.Errorf("found %q", got)
		}
	})
}

// A line in imports.txt that a layer forbids is found; so is one that nothing needs.
func TestPlantedLines(t *testing.T) {
	all, list := parse(t, repository), readAllowList(t)
	before := append(list.compare(all), list.outOfLayer()...)
	for name, c := range map[string]struct {
		path, imported string
		want           []string
	}{
		"store":         {"kvstore/internal/segment", "kvstore/internal/ring", []string{"kvstore/internal/segment: imports kvstore/internal/ring, but stores meet only in a chain, which kvstore makes"}},
		"layer":         {"internal/shm", "internal/wire", []string{"internal/shm: imports internal/wire, but it knows memory, not the protocol"}},
		"HTTP":          {"internal/pageservice/index", "net/http", []string{"internal/pageservice/index: imports net/http, but HTTP stays above the index"}},
		"daemon":        {"internal/advise/doctor", "internal/daemon", []string{"internal/advise/doctor: imports internal/daemon, but it probes a daemon from outside, as clients do", "internal/advise/doctor: imports internal/daemon, but only cmd/kv3fs may"}},
		"unsafe":        {"internal/wire", "unsafe", []string{"internal/wire: imports unsafe, but only internal/shm may"}},
		"cgo":           {"usrbio", "C", []string{"usrbio: imports C, but the main binary has no cgo"}},
		"test":          {"internal/daemon", "internal/test/leaktest", []string{"internal/daemon: imports internal/test/leaktest, but is no test"}},
		"not needed":    {"internal/wire", "container/list", nil},
		"not a package": {"internal/nothing", "", []string{"internal/nothing: in imports.txt, but there is no such package"}},
	} {
		t.Run(name, func(t *testing.T) {
			edited := maps.Clone(list)
			edited[c.path] = slices.Clone(edited[c.path])
			want := c.want
			if c.imported != "" {
				edited[c.path] = append(edited[c.path], c.imported)
				want = append([]string{c.path + ": no longer imports " + c.imported + "; remove the line"}, want...)
			}
			if got := added(before, append(edited.compare(all), edited.outOfLayer()...)); !slices.Equal(got, want) {
				t.Errorf("found %q; want %q", got, want)
			}
		})
	}
	for name, text := range map[string]string{
		"twice":           "internal/wire\ninternal/wire\n",
		"import twice":    "internal/wire\n\tos\n\tos\n",
		"without package": "\tos\n",
	} {
		if _, err := parseAllowList(text); err == nil {
			t.Errorf("%s: %q is accepted", name, text)
		}
	}
}

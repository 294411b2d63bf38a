package architecture

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// guarded are packages of the standard library that imports.txt lists like any
// other: with them a package reaches the outside, ends the process or gives up Go's
// types.
var guarded = []string{"C", "flag", "log", "net", "net/http", "os", "os/exec", "os/signal", "plugin", "testing", "unsafe"}

// listed reports whether an import has to be in imports.txt: packages of this module,
// other modules, and what is guarded.
func listed(name string, own map[string]bool) bool {
	first, _, _ := strings.Cut(name, "/")
	return own[name] || strings.Contains(first, ".") || slices.Contains(guarded, name)
}

// allowList is imports.txt: by package, what it may import.
type allowList map[string][]string

// parseAllowList reads imports.txt: a package's path at the beginning of a line, then
// its imports, one a line, indented. "#" begins a comment.
func parseAllowList(text string) (allowList, error) {
	list, current := allowList{}, ""
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		name := strings.TrimSpace(line)
		switch indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"); {
		case name == "":
		case !indented:
			if list[name] != nil {
				return nil, fmt.Errorf("line %d: %s is listed twice", n+1, name)
			}
			list[name], current = []string{}, name
		case current == "":
			return nil, fmt.Errorf("line %d: %s belongs to no package", n+1, name)
		case slices.Contains(list[current], name):
			return nil, fmt.Errorf("line %d: %s lists %s twice", n+1, current, name)
		default:
			list[current] = append(list[current], name)
		}
	}
	return list, nil
}

// compare names every difference between what packages import and what they may.
// A line that is no longer needed is a difference, too: it would let the import
// come back unseen.
func (list allowList) compare(all []source) []string {
	own := map[string]bool{}
	for _, s := range all {
		own[s.path] = true
	}
	var found []string
	for _, s := range all {
		allowed, ok := list[s.path]
		if !ok {
			found = append(found, s.path+": not in imports.txt")
			continue
		}
		imports := s.imports()
		for _, name := range imports {
			if listed(name, own) && !slices.Contains(allowed, name) {
				found = append(found, s.path+": may not import "+name)
			}
		}
		for _, name := range allowed {
			if !slices.Contains(imports, name) {
				found = append(found, s.path+": no longer imports "+name+"; remove the line")
			}
		}
	}
	for name := range list {
		if !own[name] {
			found = append(found, name+": in imports.txt, but there is no such package")
		}
	}
	slices.Sort(found)
	return found
}

// layers are the rules that imports.txt itself must follow: packages with the prefix
// never import packages with one of the other prefixes.
var layers = []struct {
	packages string
	never    []string
	reason   string
}{
	{"internal/admin", []string{"internal/daemon", "internal/fs", "internal/pageservice", "internal/advise", "internal/bench", "kvstore", "usrbio"}, "it answers for a keeper, whoever runs that"},
	{"internal/cluster", []string{"internal/daemon", "internal/fs", "internal/pageservice", "internal/keeper", "internal/admin", "internal/advise", "internal/bench", "kvstore", "usrbio"}, "it knows hosts, not what they do"},
	{"internal/csi", []string{"internal/daemon", "internal/fs", "internal/advise", "internal/bench", "kvstore", "usrbio"}, "it sees a daemon as a mount, as pods do"},
	{"internal/wire", []string{"internal/", "kvstore", "usrbio"}, "protocol bytes in, values out"},
	{"internal/shm", []string{"internal/wire", "internal/fs", "kvstore", "usrbio"}, "it knows memory, not the protocol"},
	{"internal/spelling", []string{"internal/", "os"}, "it is pure"},
	{"internal/layout", []string{"internal/fs", "internal/advise", "internal/bench", "internal/daemon", "internal/pageservice", "kvstore", "usrbio", "os"}, "names and bytes in, values out"},
	{"internal/keeper/curve", []string{"internal/", "os"}, "it is pure"},
	{"internal/keeper/policy", []string{"internal/", "os"}, "it is pure"},
	{"internal/fs/", []string{"internal/daemon", "internal/pageservice", "internal/advise", "internal/bench", "kvstore", "usrbio", "net/http"}, "the file system server knows neither its clients nor the other servers"},
	{"internal/fs/tree", []string{"internal/fs/fuseserver", "internal/fs/ringserver", "internal/fs/controldir"}, "the tree knows no server"},
	{"internal/fs/fuseserver", []string{"internal/fs/ringserver"}, "no server calls another"},
	{"internal/fs/ringserver", []string{"internal/fs/fuseserver", "internal/fs/tree"}, "no server calls another; files come from the daemon"},
	{"internal/fs/controldir", []string{"internal/fs/fuseserver", "internal/fs/ringserver", "internal/fs/tree"}, "it sees registrations and the tree through interfaces"},
	{"internal/keeper", []string{"internal/daemon", "internal/fs", "internal/pageservice", "internal/admin", "internal/advise", "internal/bench", "kvstore", "usrbio", "net/http"}, "the keeper knows files, not who serves them"},
	{"internal/pageservice", []string{"internal/fs", "internal/shm", "internal/wire", "kvstore", "usrbio"}, "the page service never touches the bytes"},
	{"internal/pageservice/index", []string{"net/http", "internal/pageservice/httpserver"}, "HTTP stays above the index"},
	{"internal/pageservice/journal", []string{"net/http", "internal/pageservice/httpserver", "internal/pageservice/index"}, "the log does not know what its records say"},
	{"internal/advise", []string{"internal/daemon", "internal/fs/fuseserver", "internal/bench", "internal/pageservice"}, "it probes a daemon from outside, as clients do"},
	{"internal/bench", []string{"internal/daemon", "internal/fs", "internal/pageservice"}, "benchmarks run the daemon as a process"},
	{"internal/host", []string{"internal/advise", "internal/daemon", "internal/fs", "kvstore", "usrbio"}, "facts do not depend on judgements"},
	{"kvstore", []string{"internal/daemon", "internal/fs", "internal/pageservice", "internal/advise", "internal/bench"}, "a library inside engines knows no server"},
	{"usrbio", []string{"internal/daemon", "internal/fs", "internal/pageservice", "internal/advise", "internal/bench", "kvstore"}, "a library inside engines knows no server"},
}

// outOfLayer names every line of imports.txt that a layer forbids.
func (list allowList) outOfLayer() []string {
	var found []string
	for name, imports := range list {
		for _, l := range layers {
			if !strings.HasPrefix(name, l.packages) {
				continue
			}
			for _, imported := range imports {
				if slices.ContainsFunc(l.never, func(prefix string) bool { return strings.HasPrefix(imported, prefix) }) {
					found = append(found, name+": imports "+imported+", but "+l.reason)
				}
			}
		}
		for _, imported := range imports {
			switch {
			case imported == "C":
				found = append(found, name+": imports C, but the main binary has no cgo")
			case imported == "unsafe" && name != "internal/shm":
				found = append(found, name+": imports unsafe, but only internal/shm may")
			case imported == "internal/daemon" && name != "cmd/kv3fs":
				found = append(found, name+": imports internal/daemon, but only cmd/kv3fs may")
			case strings.HasPrefix(imported, "internal/test/") && !strings.HasPrefix(name, "internal/test/"):
				found = append(found, name+": imports "+imported+", but is no test")
			case store(name) != "" && store(imported) != "" && store(name) != store(imported):
				found = append(found, name+": imports "+imported+", but stores meet only in a chain, which kvstore makes")
			}
		}
	}
	slices.Sort(found)
	return found
}

// stores are the packages that implement one.
var stores = []string{"cache", "empty", "fault", "files", "gdsfiles", "objects", "pages", "ring", "rtpfiles", "segment"}

// store returns the store that a package belongs to, "" for none.
func store(name string) string {
	for _, s := range stores {
		if dir := "kvstore/internal/" + s; name == dir || strings.HasPrefix(name, dir+"/") {
			return s
		}
	}
	return ""
}

func readAllowList(t *testing.T) allowList {
	t.Helper()
	text, err := os.ReadFile("imports.txt")
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseAllowList(string(text))
	if err != nil {
		t.Fatalf("imports.txt: %v", err)
	}
	return list
}

func TestImports(t *testing.T) {
	list, all := readAllowList(t), parse(t, repository)
	for _, difference := range list.compare(all) {
		t.Error(difference)
	}
	for _, breach := range list.outOfLayer() {
		t.Error(breach)
	}
}

// A rule about a package that is not there protects nothing.
func TestLayersPointAtPackages(t *testing.T) {
	list := readAllowList(t)
	for _, l := range layers {
		found := false
		for name := range list {
			found = found || strings.HasPrefix(name, l.packages)
		}
		if !found {
			t.Errorf("layers has %s, which does not exist", l.packages)
		}
	}
	for _, s := range stores {
		if list["kvstore/internal/"+s] == nil {
			t.Errorf("stores has %s, which does not exist", s)
		}
	}
}

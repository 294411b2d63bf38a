package doctest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

const (
	enginePages = "../../../docs/engines"
	firstPage   = "README"
	// timeout is for a busy machine; an idle one takes a sixth of it.
	timeout = 6 * time.Minute
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// readPages reads the README and a page for each engine. Other pages are an error.
func readPages(t *testing.T) (names []string, all map[string]page) {
	t.Helper()
	names = append([]string{firstPage}, engineconfig.Names()...)
	all = map[string]page{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(enginePages, name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		if all[name], err = parse(string(text)); err != nil {
			t.Errorf("%s.md: %v", name, err)
		}
	}
	found, _ := filepath.Glob(filepath.Join(enginePages, "*"))
	if len(found) != len(names) {
		t.Errorf("docs/engines has %d files, want a README and a page for each of %d engines", len(found), len(names)-1)
	}
	if t.Failed() {
		t.FailNow()
	}
	return names, all
}

func TestEveryBlockIsTriedOrUntried(t *testing.T) { readPages(t) }

func TestEnginePages(t *testing.T) {
	scratch, out := needSandbox(t)
	names, all := readPages(t)
	for _, name := range names {
		write(t, filepath.Join(out, name+".sh"), all[name].shell(out, name))
	}
	write(t, filepath.Join(out, "all.sh"), inOrder(out, names[1:]))
	runSandbox(t, scratch)
	for _, name := range names {
		t.Run(name, func(t *testing.T) { judge(t, out, name, all[name]) })
	}
}

// The first screen of the README: serve, connect, see a hit.
func TestReadme(t *testing.T) {
	scratch, out := needSandbox(t)
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parseReadme(string(text))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(out, "all.sh"), p.shell(out, "README")+"touch "+filepath.Join(out, "README.status")+"\n")
	runSandbox(t, scratch)
	judge(t, out, "README", p)
}

// needSandbox skips a test that cannot run here, and returns the directory that a sandbox
// needs and the one in it that both sides see.
func needSandbox(t *testing.T) (scratch, out string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: installs, starts daemons")
	}
	if os.Geteuid() != 0 {
		notTested(t, "a sandbox needs root")
	}
	if text, err := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		notTested(t, fmt.Sprintf("no sandbox can be made here: %v: %s", err, text))
	}
	scratch = t.TempDir()
	out = filepath.Join(scratch, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	return scratch, out
}

// shell returns the script that runs a page's blocks, each with its output in a file.
func (p page) shell(out, name string) string {
	var b strings.Builder
	for _, s := range p.standIns {
		kind, what, _ := strings.Cut(s, ":")
		switch kind {
		case "python":
			fmt.Fprintf(&b, "mkdir -p \"$(python3 -c 'import site; print(site.getsitepackages()[0])')/%s\"\n", what)
		case "command":
			fmt.Fprintf(&b, "ln -sf /bin/true /usr/bin/%s\n", what)
		}
	}
	for _, block := range p.tried {
		fmt.Fprintf(&b, "{\n%s} >%s 2>&1 </dev/null\n", block.script, printed(out, name, block))
	}
	return b.String()
}

// inOrder returns the script that runs all pages. The README runs in its own shell, so
// that the others inherit its environment and its daemons. Each of them has its own
// mounts.
func inOrder(out string, names []string) string {
	file := func(name, suffix string) string { return filepath.Join(out, name+suffix) }
	var b strings.Builder
	fmt.Fprintf(&b, ". %s; echo tried >%s\n", file(firstPage, ".sh"), file(firstPage, ".status"))
	for _, name := range names {
		fmt.Fprintf(&b, "if unshare --mount bash -euo pipefail %s; then echo tried >%s; fi\n", file(name, ".sh"), file(name, ".status"))
	}
	return b.String()
}

func printed(out, name string, b block) string {
	return filepath.Join(out, fmt.Sprintf("%s.line%d", name, b.line))
}

// runSandbox runs all.sh. The sandbox ends with its first process, which ends with the
// test.
func runSandbox(t *testing.T, scratch string) {
	t.Helper()
	source, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	sandbox := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
		"bash", "testdata/sandbox.sh", scratch, source)
	// Tests set variables that kv3fs takes for flags; a reader of the pages has none.
	sandbox.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KV3FS_") })
	sandbox.WaitDelay = 10 * time.Second
	if text, err := sandbox.CombinedOutput(); err != nil {
		t.Logf("the sandbox: %v %v\n%s", err, ctx.Err(), text)
	}
}

// judge compares the output of a page's blocks with what the page shows.
func judge(t *testing.T, out, name string, p page) {
	_, err := os.Stat(filepath.Join(out, name+".status"))
	finished := err == nil
	for i, b := range p.tried {
		text, err := os.ReadFile(printed(out, name, b))
		if errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s.md:%d was not reached", name, b.line)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s.md:%d printed\n%s", name, b.line, text)
		next := i+1 < len(p.tried)
		if next {
			_, err = os.Stat(printed(out, name, p.tried[i+1]))
		}
		switch {
		case !finished && (!next || err != nil):
			t.Fatalf("%s.md:%d failed; see what it printed", name, b.line)
		case b.output != "" && !matches(b.output, string(text)):
			t.Errorf("%s.md:%d printed that, but the page shows\n%s", name, b.line, b.output)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// notTested ends a test that cannot run here: it fails if every test is required, and
// skips otherwise.
func notTested(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %s", why)
	}
	t.Skipf("NOT TESTED: %s", why)
}

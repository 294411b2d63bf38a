package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/manual"
)

// commandTree returns the command tree.
func commandTree(t *testing.T) *kong.Node {
	t.Helper()
	app, err := newParser(&flagValues{}, io.Discard, &teller{stderr: io.Discard}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return app.Model.Node
}

// Every command and flag is offered where it may stand.
func TestCompletionIsComplete(t *testing.T) {
	app := commandTree(t)
	offered := func(words ...string) (all []string) {
		candidates, _ := manual.Complete(app, words, knownValues)
		for _, c := range candidates {
			all = append(all, c.Word)
		}
		return all
	}
	for _, n := range manual.Commands(app) {
		path := strings.Fields(n.Path())
		if got := offered(path...); !slices.Contains(got, n.Name) {
			t.Errorf("%v is not offered: %v", path, got)
		}
		for _, f := range n.Flags {
			if got := offered(append(slices.Clone(path), "--"+f.Name[:1])...); slices.Contains(got, "--"+f.Name) == f.Hidden {
				t.Errorf("%v: --%s: %v", path, f.Name, got)
			}
			if values := f.Enum; values != "" && !f.Hidden {
				want := strings.FieldsFunc(values, func(r rune) bool { return r == ',' })
				if got := offered(append(slices.Clone(path), "--"+f.Name, "")...); !slices.Equal(got, want) {
					t.Errorf("%v --%s: %v, want %v", path, f.Name, got, want)
				}
			}
		}
	}
	for _, c := range []struct {
		words string
		want  string
		names manual.Names
	}{
		{"serve --io=di", "--io=direct", manual.NoNames},
		{"serve --io = di", "direct", manual.NoNames},
		{"serve --data ", "", manual.DirectoryNames},
		{"serve --config=/e", "", manual.FileNames},
		{"du ", "", manual.FileNames},
		{"pr", "", manual.NoNames}, // probe is hidden
		{"completion z", "zsh", manual.NoNames},
		{"engine-config vl", "vllm", manual.NoNames},
		{"plan --gpu MI3", "MI300X MI355X", manual.NoNames},
		{"plan --bandwidth=3fs,100", "--bandwidth=3fs,100gbe", manual.NoNames},
		{"help bench ri", "ring", manual.NoNames},
		{"bench engine rand", "random-twice", manual.NoNames},
		{"version x", "", manual.NoNames},
		{"nonsense --", "--help --version", manual.NoNames},
		{"serve -- --d", "", manual.NoNames},
	} {
		candidates, names := manual.Complete(app, strings.Split(c.words, " "), knownValues)
		var got []string
		for _, x := range candidates {
			got = append(got, x.Word)
		}
		if strings.Join(got, " ") != c.want || names != c.names {
			t.Errorf("%q: %v, names %v; want %s, %v", c.words, got, names, c.want, c.names)
		}
	}
}

// A real bash, on a terminal, completes what a user types.
func TestBashCompletes(t *testing.T) {
	bin := binary(t)
	dir := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(dir, "kv3fs")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a directory/below"), 0o755); err != nil {
		t.Fatal(err)
	}
	main, tty := terminal(t)
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "PS1=", "TERM=dumb", "HOME=" + dir, "INPUTRC=/dev/null", "HISTFILE="}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	output := make(chan string, 1<<10)
	go func() {
		defer close(output)
		for {
			b := make([]byte, 1<<12)
			n, err := main.Read(b)
			if err != nil {
				return
			}
			output <- string(b[:n])
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		main.Close()
		for range output {
		}
	})
	deadline := time.After(2 * time.Minute)
	var seen strings.Builder
	await := func(want string) {
		t.Helper()
		for !strings.Contains(seen.String(), want) {
			select {
			case text, ok := <-output:
				if !ok {
					t.Fatalf("bash ended; it wrote %q, not %q", seen.String(), want)
				}
				seen.WriteString(text)
			case <-deadline:
				t.Fatalf("bash wrote %q, not %q", seen.String(), want)
			}
		}
		seen.Reset()
	}
	send := func(text string) {
		t.Helper()
		if _, err := main.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	send("source <(kv3fs completion bash); echo loaded-$?\n")
	await("loaded-0")
	for typed, want := range map[string]string{
		"kv3fs benc\trin\t--io=buf\t":    "<kv3fs><bench><ring><--io=buffered>",
		"kv3fs pages forg\t--js\t":       "<kv3fs><pages><forget-rank><--json>",
		"kv3fs serve --data a\tbe\t":     "<kv3fs><serve><--data><a directory/below/>",
		"kv3fs engine-config lmcache-\t": "<kv3fs><engine-config><lmcache-gds>",
	} {
		const first, last = "\x01", "\x05" // moves of the cursor
		send(typed + first + "printf '<%s>' " + last + "\n")
		await(want)
	}
}

// terminal returns both ends of a pseudo-terminal. Nothing is echoed.
func terminal(t *testing.T) (main, tty *os.File) {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	fd := int(main.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return main, tty
}

// zsh and fish load their scripts, where they are installed.
func TestOtherShellsLoad(t *testing.T) {
	bin := binary(t)
	for shell, args := range map[string][]string{
		"zsh":  {"-f", "-c", "autoload -Uz compinit && compinit -u -D && source $1 && (( $+functions[_kv3fs] ))", "zsh"},
		"fish": {"--no-config", "-c", "source $argv[1]; complete -C 'kv3fs benc' | string match -q 'bench*'"},
	} {
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not installed", shell)
			continue
		}
		dir := t.TempDir()
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte(manual.Script(shell, "kv3fs")), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(bin, filepath.Join(dir, "kv3fs")); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(shell, append(args, script)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}

// There is a man page for every command, with every flag, and groff finds nothing wrong.
func TestManPages(t *testing.T) {
	app := commandTree(t)
	pages := map[string]string{}
	for _, p := range manual.Pages(app, manualAbout()) {
		pages[p.Name] = p.Text
	}
	all := append([]*kong.Node{app}, manual.Commands(app)...)
	if len(pages) != len(all)+1 {
		t.Errorf("%d pages for %d commands and a file", len(pages), len(all))
	}
	for _, n := range all {
		name := strings.ReplaceAll(n.FullPath(), " ", "-") + ".1"
		for _, f := range n.Flags {
			if !f.Hidden && !strings.Contains(pages[name], `\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		}
	}
	if !strings.Contains(pages["kv3fs.yaml.5"], "\n.B data\\-must\\-exist\n") || strings.Contains(pages["kv3fs.yaml.5"], "\n.B check\n") {
		t.Error("kv3fs.yaml(5) does not have the keys of the configuration file")
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("groff is not installed")
	}
	for name, text := range pages {
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=0")
		var warnings bytes.Buffer
		cmd.Stdin, cmd.Stderr = strings.NewReader(text), &warnings
		if out, err := cmd.Output(); err != nil || warnings.Len() > 0 || len(out) == 0 {
			t.Errorf("%s: %v %s", name, err, warnings.String())
		}
	}
}

// docs/reference is what make reference writes.
func TestReferenceIsCurrent(t *testing.T) {
	const dir = "../../docs/reference"
	pages, err := referencePages(commandTree(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range pages {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s/%s is stale (%v): run make reference", dir, name, err)
		}
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range there {
		if pages[e.Name()] == "" && e.Name() != "README.md" {
			t.Errorf("%s/%s is not made by make reference", dir, e.Name())
		}
	}
}

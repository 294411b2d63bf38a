package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The unit starts the binary that was installed with it, with a configuration that is right
// and that another installation leaves alone.
func TestInstalledUnit(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	stage := t.TempDir()
	install := func(prefix string) (unit string) {
		t.Helper()
		installUnit(t, stage, prefix)
		text, err := os.ReadFile(filepath.Join(stage, prefix, "lib/systemd/system/kv3fs.service"))
		if err != nil {
			t.Fatal(err)
		}
		keep, err := os.ReadFile(filepath.Join(stage, prefix, "lib/systemd/system/kv3fs-keep@.service"))
		if err != nil || !bytes.Contains(keep, []byte("\nExecStart="+prefix+"/bin/kv3fs keep %f\n")) {
			t.Errorf("with PREFIX=%s: %v, %s", prefix, err, keep)
		}
		return string(text)
	}
	// systemd takes SuccessExitStatus for that of ExecReload, too, which shall fail where something needs a restart.
	if unit := install("/usr"); !strings.Contains(unit, "/bin/kv3fs reload ") || !strings.Contains(unit, "\nSuccessExitStatus=3\n") || exitRestart == 3 {
		t.Errorf("a reload with exit status %d counts as a success: %s", exitRestart, unit)
	}
	for _, prefix := range []string{"/usr", "/usr/local", "/opt/kv3fs"} {
		if want := "\nExecStart=" + prefix + "/bin/kv3fs serve --config /etc/kv3fs/kv3fs.yaml\n"; !strings.Contains(install(prefix), want) {
			t.Errorf("with PREFIX=%s, no line%s", prefix, want)
		}
	}
	config := filepath.Join(stage, "etc/kv3fs/kv3fs.yaml")
	if status, out, errs := usage("serve", "--check", "--config", config); status != 0 || !strings.HasPrefix(out, "data: /var/lib/kv3fs  # "+config) {
		t.Errorf("the sample configuration: status %d, %s%s", status, out, errs)
	}
	// What it leaves out, as comments, is right as well.
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"data-must-exist: ", "mode: ", "pages-listen: "} {
		if !bytes.Contains(text, []byte("\n# "+key)) {
			t.Errorf("no %q in it", key)
		}
		text = bytes.ReplaceAll(text, []byte("\n# "+key), []byte("\n"+key))
	}
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := usage("serve", "--check", "--config", config); status != 0 {
		t.Errorf("the sample configuration, all of it: status %d, %s", status, errs)
	}
	install("/usr")
	if again, err := os.ReadFile(config); err != nil || !bytes.Equal(again, text) {
		t.Errorf("another installation changed the configuration: %v\n%s", err, again)
	}
}

// The configuration of former versions, at another place, is what the unit reads after an installation; it stays where
// it was, since a daemon that runs may read it again.
func TestInstalledUnitTakesTheFormerConfiguration(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	stage := t.TempDir()
	former, config := filepath.Join(stage, "etc/kv3fs.yaml"), filepath.Join(stage, "etc/kv3fs/kv3fs.yaml")
	text := "data: /srv/cache\nmount: /mnt/3fs\n"
	if err := os.Mkdir(filepath.Dir(former), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(former, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, said := range [][]string{
		{"copied " + former + " to " + config + "\n", "kv3fs.service reads " + config + "; remove " + former},
		{"kv3fs.service reads " + config + "; remove " + former},
	} {
		out := installUnit(t, stage, "/usr")
		if strings.Count(out, "\n") != len(said) {
			t.Errorf("it says %s", out)
		}
		for _, line := range said {
			if !strings.Contains(out, line) {
				t.Errorf("not %q, but %s", line, out)
			}
		}
		for _, file := range []string{former, config} {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if now, err := os.ReadFile(file); err != nil || string(now) != text || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v, %s", file, err, info.Mode(), now)
			}
		}
		text += "capacity: 80%\n"
		for _, file := range []string{former, config} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func installUnit(t *testing.T, stage, prefix string) (said string) {
	t.Helper()
	cmd := exec.Command("make", "-s", "install-unit", "DESTDIR="+stage, "PREFIX="+prefix)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestUnitIsValid(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"kv3fs.service", "kv3fs-keep@.service"} {
		text, err := os.ReadFile("../../deploy/" + name)
		if err != nil {
			t.Fatal(err)
		}
		unit := filepath.Join(t.TempDir(), strings.Replace(name, "@", "@mnt-cache", 1))
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/kv3fs"), []byte("/bin/sh")) // it must exist
		if err := os.WriteFile(unit, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || bytes.Contains(out, []byte(filepath.Base(unit)+":")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

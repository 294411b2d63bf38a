package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// A path that is not UTF-8 is not replaced by another one: a flag and a variable keep its
// bytes, and a file, which cannot hold them, is refused.
func TestNotUTF8(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d\xffx")
	config := filepath.Join(t.TempDir(), "kv3fs.yaml")
	if err := os.WriteFile(config, []byte("mount: /mnt/3fs\ndata: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(args ...string) (int, string, string) {
		return usage(append([]string{"serve", "--check"}, args...)...)
	}
	if status, out, errs := check("--config", config); status != exitUsage || out != "" || !strings.Contains(errs, config+`:2: "data: `) || !strings.Contains(errs, "is not UTF-8, as YAML must be") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if status, out, errs := check("--data", dir, "--mount", filepath.Join(dir, "m")); status != exitUsage || !strings.Contains(errs, dir+"/m is in the data directory "+dir) && !strings.Contains(errs, dir) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	// What --check prints names no other directory.
	status, out, errs := check("--data", dir, "--mount", "/mnt/3fs")
	if want := fmt.Sprintf("\n# data: %q  # command line; is not UTF-8, as YAML must be", dir); status != 0 || !strings.Contains("\n"+out, want) || strings.Contains(out, "ufffd") {
		t.Errorf("status %d, want %q in\n%s%s", status, want, out, errs)
	}
	model := filepath.Join(t.TempDir(), "m\xff")
	if err := os.Mkdir(model, 0o700); err != nil {
		t.Fatal(err)
	}
	const shape = `{"num_hidden_layers":2,"hidden_size":512,"intermediate_size":2048,"num_attention_heads":8,"vocab_size":32000}`
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(shape), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs = planned("--model", model, "--gpu", "H100", "--json")
	if checkJSON(t, "plan", out); status != 0 || !strings.Contains(out, `"/model"`) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	t.Setenv("KV3FS_DATA", dir)
	if status, out, errs := check("--mount", filepath.Join(dir, "m")); status != exitUsage || !strings.Contains(errs, dir) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
}

// A daemon serves such directories, a replay writes there, and a report says so reversibly.
func TestServeNotUTF8(t *testing.T) {
	skipWithoutFUSE(t)
	bin := binary(t)
	d := daemontest.ServeWith(t, daemontest.Options{Binary: bin, Data: filepath.Join(t.TempDir(), "data\xff")})
	trace := filepath.Join(t.TempDir(), "trace\xfe.jsonl")
	if err := os.WriteFile(trace, []byte(`{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "replay", "--trace", trace, "--mount", d.Mount, "--block-bytes", "4k", "--json").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if files, err := filepath.Glob(filepath.Join(d.Data, "kv3fs-replay", "01", "*")); err != nil || len(files) != 1 {
		t.Errorf("the replay left %q in %q, %v", files, d.Data, err)
	}
	var report struct {
		Trace   string
		NotUTF8 map[string][]byte `json:"not_utf8"`
	}
	if err := json.Unmarshal(out, &report); err != nil || string(report.NotUTF8["/trace"]) != trace || report.Trace != strings.ToValidUTF8(trace, "\ufffd") {
		t.Errorf("%v: %q\n%s", err, report, out)
	}
	cmd := exec.Command(bin, "doctor", "--json", "--no-bandwidth", "--mount", d.Mount)
	out, _ = cmd.Output() // this host may have warnings
	checkJSON(t, "doctor", string(out))
	// The same, by paths relative to a directory that is not UTF-8.
	cmd = exec.Command(bin, "doctor", "--json", "--no-bandwidth", "--mount", "none", "--data", ".")
	cmd.Dir = d.Data
	relative, _ := cmd.Output()
	checkJSON(t, "doctor", string(relative))
	var head envelope
	if err := json.Unmarshal(relative, &head); err != nil || !slices.ContainsFunc(slices.Collect(maps.Values(head.NotUTF8)), func(text []byte) bool {
		return strings.Contains(string(text), filepath.Join(d.Data, "none"))
	}) {
		t.Errorf("doctor looked at another directory than %q: %v, %q", d.Data, err, head.NotUTF8)
	}
	var diagnosis struct {
		Data    string
		NotUTF8 map[string][]byte `json:"not_utf8"`
	}
	if err := json.Unmarshal(out, &diagnosis); err != nil || string(diagnosis.NotUTF8["/data"]) != d.Data {
		t.Errorf("%v: %q, want %q\n%s", err, diagnosis, d.Data, out)
	}
}

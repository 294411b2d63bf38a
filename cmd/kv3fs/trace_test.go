package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

func TestTraceGenerate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	var direct, none, stderr bytes.Buffer
	args := []string{"trace", "generate", "--requests", "50", "--seed", "3"}
	if code := run(args, &direct, &stderr); code != 0 {
		t.Fatal(code, stderr.String())
	}
	if code := run(append(args, "--out", file), &none, &stderr); code != 0 || none.Len() != 0 {
		t.Fatal(code, stderr.String(), none.String())
	}
	written, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(written, direct.Bytes()) {
		t.Errorf("the file and standard output differ: %v", err)
	}
	s, err := workload.TakeSurvey(workload.NewReader(&direct, "t"), 0)
	if err != nil || s.Requests != 50 {
		t.Errorf("%+v, %v", s, err)
	}
	if left, _ := filepath.Glob(file + ".*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--requests", "0"}, "--requests: 0", exitUsage},
		{[]string{"--turns", "0.5"}, "--turns: 0.5", exitUsage},
		{[]string{"--out", "/dev/null"}, "--out -", exitFailed},
		{[]string{"--out", "/nonexistent/x"}, "no such file", exitFailed},
	} {
		stderr.Reset()
		if code := run(append([]string{"trace", "generate"}, c.args...), &none, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, stderr.String())
		}
	}
}

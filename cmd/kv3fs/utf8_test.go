package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A path that is not UTF-8 is not replaced by another one.
func TestNotUTF8(t *testing.T) {
	const dir = "/tmp/d\xffx"
	config := filepath.Join(t.TempDir(), "kv3fs.yaml")
	if err := os.WriteFile(config, []byte("mount: /mnt/3fs\ndata: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		status, out, errs := usage(append([]string{"serve", "--check"}, args...)...)
		if status != exitUsage || out != "" || !strings.Contains(errs, want) || !strings.Contains(errs, `d\xffx" is not UTF-8`) {
			t.Errorf("status %d: %s%s; want %s", status, out, errs, want)
		}
	}
	refused(`kv3fs: "/tmp/d`, "--data", dir, "--mount", "/mnt/3fs")
	refused(`kv3fs: "--mount=/tmp/d`, "--data", "/tmp/d", "--mount="+dir)
	refused(config+`:2: "data: `, "--config", config)
	t.Setenv("KV3FS_DATA", dir)
	refused("kv3fs: KV3FS_DATA: ", "--mount", "/mnt/3fs")
}

package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// --version and the command version print the same.
func TestVersion(t *testing.T) {
	file, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimSpace(string(file))
	t.Setenv("KV3FS_VERSION", "other programs may set this variable")
	_, flag, _ := usage("--version")
	status, out, errs := usage("version")
	if status != 0 || out != flag || errs != "" {
		t.Errorf("status %d, %s%s; --version prints %s", status, out, errs, flag)
	}
	if !strings.HasPrefix(out, "kv3fs "+want+"\ncommit: ") || !regexp.MustCompile(`ioctls: +version 1, magic 0x8f3f5fff`).MatchString(out) {
		t.Errorf("version: %s", out)
	}
	var info map[string]any
	_, out, _ = usage("version", "--json")
	checkJSON(t, "version", out)
	if err := json.Unmarshal([]byte(out), &info); err != nil || info["version"] != want || info["ioctl_version"] != 1.0 {
		t.Errorf("version --json: %v %s", err, out)
	}
}

// Without version-control stamps, the values set by the linker are used.
func TestVersionFromTheLinker(t *testing.T) {
	commit, date = "0123456789abcdef0123456789abcdef01234567-dirty", "2026-11-22T10:00:00Z"
	defer func() { commit, date = "", "" }()
	if b := thisBuild(); b.Commit != "0123456789abcdef0123456789abcdef01234567" || !b.Modified || b.Date != date {
		t.Errorf("%+v", b)
	}
	if got := version(); !strings.HasSuffix(got, "+0123456789ab.modified") {
		t.Errorf("the daemon's version is %q", got)
	}
}

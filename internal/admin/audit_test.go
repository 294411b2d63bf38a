package admin

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// What operators change is logged with who they are, whatever names they give; what they look at is not.
func TestAudit(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	_, _, k := open(t, t.TempDir(), map[string]int{"models/a": 5000, "models/b": 5000})
	dir := t.TempDir()
	s := NewServer(dir, k, nil, slog.New(slog.DiscardHandler))
	s.Audit = log
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := Dial(t.Context(), []string{dir}, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx := t.Context()
	hostile := "models/\"\nlevel=ERROR msg=no"
	gone := func(keeper.Removal) error { return nil }
	for _, err := range []error{
		c.SetQuota(ctx, "models", 10<<20), c.RemoveQuota(ctx, "models"), c.SetTTL(ctx, "models/*", time.Hour), c.Pin(ctx, []string{hostile, "dry_run"}, keeper.Origin{Owner: "lmcache"}),
		c.Evict(ctx, keeper.Selection{Patterns: []string{"models/*"}}, true, gone), c.Evict(ctx, keeper.Selection{Patterns: []string{"models/*"}}, false, gone),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := c.RemoveQuota(ctx, "dry_run"); err == nil {
		t.Error("a quota that there is not was removed")
	}
	if _, err := c.State(ctx); err != nil {
		t.Error(err)
	}
	who := fmt.Sprintf("uid=%d pid=%d program=admin", os.Getuid(), os.Getpid())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"call=set-quota bytes=10485760 path=models user=", "call=remove-quota path=models", "call=set-ttl pattern=models/* unused=1h0m0s",
		`call=pin owner=lmcache patterns="[\"models/\\\"\\nlevel=ERROR msg=no\",\"dry_run\"]"`, `call=evict patterns="[\"models/*\"]" files=2`, "call=remove-quota path=dry_run",
	} {
		if i >= len(lines) || !strings.Contains(lines[i], want) || !strings.Contains(lines[i], who) {
			t.Errorf("line %d lacks %s or %s:\n%s", i, want, who, out.String())
		}
	}
	if len(lines) != 6 || !strings.Contains(lines[5], "err=") {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
}

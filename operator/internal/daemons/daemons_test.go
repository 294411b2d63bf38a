package daemons_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/operator/internal/build"
	"github.com/kv3fs/kv3fs/operator/internal/certs"
	"github.com/kv3fs/kv3fs/operator/internal/daemons"
	"github.com/kv3fs/kv3fs/operator/internal/daemontest"
)

// A real daemon with the operator's configuration answers, one that hangs or is gone does not, and another's token or certificate is of no use.
func TestAsk(t *testing.T) {
	secret, _, err := certs.Renewed(nil, build.ServerName("asked"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d := daemontest.Serve(t, "asked", secret)
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	all := []daemons.Daemon{
		{Node: "serves", Address: fmt.Sprintf("127.0.0.1:%d", d.Port)},
		{Node: "hangs", Address: hangs.Addr().String()},
		{Node: "gone", Address: "127.0.0.1:1"},
	}
	const patience = 2 * time.Minute
	ask := func(secret map[string][]byte, token string) map[string]daemons.Result {
		t.Helper()
		results, err := daemons.Ask(t.Context(), secret[certs.Trust], build.ServerName("asked"), token, all)
		if err != nil {
			t.Fatal(err)
		}
		return results
	}
	token := string(secret[certs.Token])
	var results map[string]daemons.Result
	for until := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		results = ask(secret, token)
		if r := results["serves"]; r.Err == nil && r.Status.Keeper != nil && r.Status.Keeper.UsedBytes >= 8<<20 {
			break
		} else if time.Now().After(until) {
			t.Fatalf("%+v", r)
		}
	}
	if s := results["serves"].Status; s.Identity != "node-a" || s.Keeper.LimitBytes != 1<<30 {
		t.Errorf("the daemon says %+v", s)
	}
	if err := results["hangs"].Err; !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "deadline exceeded") {
		t.Errorf("one that hangs: %v", err)
	}
	if results["gone"].Err == nil {
		t.Error("one that is gone answers")
	}
	// A machine that has much else to do may take longer to answer than is waited for it.
	refused := func(secret map[string][]byte, token, why string) {
		t.Helper()
		for until := time.Now().Add(patience); ; {
			err := ask(secret, token)["serves"].Err
			if err != nil && strings.Contains(err.Error(), why) {
				return
			}
			if err == nil || time.Now().After(until) {
				t.Errorf("%v; want %s", err, why)
				return
			}
		}
	}
	refused(secret, "another", "401")
	other, _, err := certs.Renewed(nil, build.ServerName("asked"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	refused(other, token, "certificate")
}

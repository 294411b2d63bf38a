package daemon

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A newcomer is waited for as long as it lives, however long it takes to start.
func TestSlowNewcomerIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	newcomer, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	const tick = time.Millisecond
	time.AfterFunc(20*tick, func() { _ = say(newcomer, servesMessage) })
	if said, err := hearStarted(keeper, os.Getpid(), tick); said != servesMessage || err != nil {
		t.Errorf("a slow newcomer: %q, %v", said, err)
	}
	time.AfterFunc(20*tick, func() { _ = newcomer.Close() })
	if said, err := hearStarted(keeper, os.Getpid(), tick); !errors.Is(err, io.EOF) {
		t.Errorf("one that ends: %q, %v", said, err)
	}
}

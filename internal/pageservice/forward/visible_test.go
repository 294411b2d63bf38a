package forward_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice/forward"
)

// other is the page service of a host that does not lead.
type other struct{}

func (other) ServePeer(w http.ResponseWriter, _ *http.Request, _, _, _ string) {
	w.WriteHeader(http.StatusMisdirectedRequest)
}
func (other) Leads() bool { return false }

// TestVisible: a host that need not lead says what it reads; one that reads no files, or cannot just now, says so, and strangers are told nothing.
func TestVisible(t *testing.T) {
	from := ""
	reads := func(_ context.Context, host string, question []byte) ([]byte, error) {
		from = host
		if string(question) == "hangs" {
			return nil, errors.New("the disk hangs")
		}
		return append([]byte("answer to "), question...), nil
	}
	for _, c := range []struct {
		name, token, question string
		visible               func(context.Context, string, []byte) ([]byte, error)
		answer, fails         string
	}{
		{"reads", "of hosts", "q", reads, "answer to q", ""},
		{"hangs", "of hosts", "hangs", reads, "", "the disk hangs"},
		{"reads no files", "of hosts", "q", nil, "", forward.ErrNoReader.Error()},
		{"stranger", "guessed", "q", reads, "", "token"},
		{"too long", "of hosts", strings.Repeat("q", 5000), reads, "", "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from = ""
			h := forward.NewHandler(other{}, forward.HandlerOptions{Identity: forward.Identity{Host: "b", Cluster: "c"}, Token: "of hosts", Visible: c.visible, Log: slog.New(slog.DiscardHandler)})
			s := httptest.NewServer(h)
			defer s.Close()
			client := forward.New(forward.Options{Identity: forward.Identity{Host: "a", Cluster: "c"}, Token: c.token, Leaders: newLeaders(), Log: slog.New(slog.DiscardHandler)})
			defer client.Close()
			got, err := client.Visible(t.Context(), forward.Target{Host: "b", Address: s.Listener.Addr().String()}, []byte(c.question))
			switch {
			case c.fails == "" && (err != nil || string(got) != c.answer || from != "a"):
				t.Errorf("%s, %v, from %q", got, err, from)
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("%s, %v", got, err)
			case c.token != "of hosts" && from != "":
				t.Error("a stranger was answered")
			}
			if c.visible == nil && !errors.Is(err, forward.ErrNoReader) {
				t.Error(err)
			}
		})
	}
}

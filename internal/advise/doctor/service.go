package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
)

const (
	defaultService = "http://127.0.0.1:18000"
	// serviceTimeout is how long vLLM's scheduler may wait (clients.md, R40).
	serviceTimeout = time.Second
	maxAnswerBytes = 64 << 10
)

// checkService sends the page service a request that needs no state. address is ""
// if no engine is known to need the service.
func checkService(ctx context.Context, address, engine string) Finding {
	const id = "pages"
	needed := address != ""
	if !needed {
		address = defaultService
	}
	u, err := url.Parse(strings.TrimSuffix(address, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return Finding{ID: id, Status: Failure, Found: "the page service's URL names no host: it must be http://HOST:PORT", Needed: "a URL such as " + defaultService}
	}
	shown := u.Redacted() // it may hold a token
	path := "/keys/batch_exists"
	if engine == engineconfig.SGLang {
		path = "/0/exists"
	}
	began := time.Now()
	status, answer, err := post(ctx, u.String()+path, `{"keys":[]}`)
	elapsed := time.Since(began).Round(time.Millisecond / 10)
	f := Finding{ID: id, Status: Failure, Needed: fmt.Sprintf("a page service for %s that answers within %v", engine, serviceTimeout)}
	if !needed {
		f.Status, f.Needed = Note, "nothing, unless vLLM runs here, or SGLang with a metadata server"
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		f.Found = fmt.Sprintf("%s: no answer within %v", shown, serviceTimeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Found = fmt.Sprintf("nothing listens at %s", shown)
	case err != nil:
		f.Found = fmt.Sprintf("%s: %v", shown, err)
	case understood(engine, status, answer):
		return ok(id, "%s answers in %v", shown, elapsed)
	case status == http.StatusUnauthorized:
		return Finding{ID: id, Status: Note, Found: fmt.Sprintf("%s answers in %v and requires a token", shown, elapsed), Needed: "the token in the engine's URL or in ~/.netrc of its user"}
	default:
		f.Found = fmt.Sprintf("%s is not a page service of this kind: it answers POST %s with %d", shown, path, status)
	}
	if needed {
		f.Fix = "kv3fs pages serve --data /var/lib/kv3fs --listen " + quote(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))) + "   # on that host; or kv3fs serve, which runs one"
	}
	return f
}

// understood reports whether an answer comes from a page service. SGLang's service knows
// no ranks until an engine initialises; its error for an unknown rank differs from that
// of a server without such a path.
func understood(engine string, status int, answer []byte) bool {
	var reply struct {
		Exists *[]bool `json:"exists"`
		Detail string  `json:"detail"`
	}
	if json.Unmarshal(answer, &reply) != nil {
		return false
	}
	return status == http.StatusOK && reply.Exists != nil ||
		engine == engineconfig.SGLang && status == http.StatusNotFound && reply.Detail != "" && reply.Detail != "Not Found"
}

func post(ctx context.Context, to, body string) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	// A transport of its own, without a proxy: engines talk to their own host.
	transport := &http.Transport{DisableKeepAlives: true}
	reply, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer reply.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(reply.Body, maxAnswerBytes))
	return reply.StatusCode, answer, err
}

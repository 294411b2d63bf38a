package doctor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
)

func TestService(t *testing.T) {
	stuck := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/stuck/keys/batch_exists":
			<-stuck
		case r.Method == http.MethodPost && r.URL.Path == "/keys/batch_exists" && string(body) == `{"keys":[]}`:
			fmt.Fprint(w, `{"exists":[]}`)
		case r.URL.Path == "/other/keys/batch_exists":
			fmt.Fprint(w, `<html>`)
		case strings.HasPrefix(r.URL.Path, "/locked/"):
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case r.URL.Path == "/web/0/exists":
			http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		case r.URL.Path == "/0/exists":
			http.Error(w, `{"detail":"rank not initialized"}`, http.StatusNotFound)
		default:
			http.Error(w, "what?", http.StatusInternalServerError)
		}
	}))
	defer service.Close()
	defer close(stuck)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, c := range []struct {
		what, url, engine string
		status            Status
	}{
		{"vLLM's", service.URL, engineconfig.VLLM, OK},
		{"with a slash", service.URL + "/", engineconfig.VLLM, OK},
		{"SGLang's", service.URL, engineconfig.SGLang, OK},
		{"a web server", service.URL + "/web", engineconfig.SGLang, Failure},
		{"another service", service.URL + "/other", engineconfig.VLLM, Failure},
		{"one with a token", service.URL + "/locked", engineconfig.VLLM, Note},
		{"an error", service.URL + "/none", engineconfig.VLLM, Failure},
		{"nothing listens", closed.URL, engineconfig.VLLM, Failure},
		{"no URL", "://", engineconfig.SGLang, Failure},
	} {
		want(t, c.what, checkService(t.Context(), c.url, c.engine), "pages", c.status)
	}
	secret := strings.Replace(closed.URL, "://", "://kv3fs:secret@", 1)
	if f := checkService(t.Context(), secret, engineconfig.SGLang); strings.Contains(f.Found+f.Needed+f.Fix, "secret") || !strings.HasPrefix(f.Fix, "kv3fs pages serve") {
		t.Errorf("a URL with a token: %+v", f)
	}
	began := time.Now()
	want(t, "stuck", checkService(t.Context(), service.URL+"/stuck", engineconfig.VLLM), "pages", Failure)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a stuck service took %v", took)
	}
}

package build_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kv3fs/kv3fs/operator/internal/build"
	"github.com/kv3fs/kv3fs/operator/internal/certs"
	"github.com/kv3fs/kv3fs/operator/internal/daemontest"
)

// kv3fs itself takes the configuration that its daemons get.
func TestConfiguration(t *testing.T) {
	binary := daemontest.Program(t)
	for _, name := range []string{"hostpath", "localdisk", "claim"} {
		t.Run(name, func(t *testing.T) {
			in := inputs(t, name)
			root := t.TempDir()
			fill(t, root, in)
			text, err := build.Config(in)
			if err != nil {
				t.Fatal(err)
			}
			// The container's directories are below root here.
			text = regexp.MustCompile(`(/etc|/data|/run|/var)\b`).ReplaceAllString(text, root+"$1")
			config := filepath.Join(root, "kv3fs.yaml")
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			check := exec.Command(binary, "serve", "--check", "--config", config)
			check.Env = append(os.Environ(), environment(t, in)...)
			out, err := check.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s\nof\n%s", err, out, text)
			}
			// What is in effect is what was written: each key comes from the file.
			var keys map[string]any
			if err := yaml.Unmarshal([]byte(text), &keys); err != nil {
				t.Fatal(err)
			}
			for key := range keys {
				if !regexp.MustCompile(`(?m)^` + key + `:.*  # .*kv3fs\.yaml`).Match(out) {
					t.Errorf("%s is not in effect:\n%s", key, out)
				}
			}
		})
	}
}

// Keys that the schema says the operator sets itself are those that it sets.
func TestOwnKeys(t *testing.T) {
	crd, err := os.ReadFile("../../crds/kv3fs.io_kvcaches.yaml")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`k in \[([^]]*)\]`).FindSubmatch(crd)
	if list == nil {
		t.Fatal("the CRD has no rule about keys of settings")
	}
	for _, quoted := range regexp.MustCompile(`[a-z][a-z-]*`).FindAllString(string(list[1]), -1) {
		set := false
		for _, name := range []string{"hostpath", "localdisk", "claim"} {
			text, err := build.Config(inputs(t, name))
			if err != nil {
				t.Fatal(err)
			}
			set = set || regexp.MustCompile(`(?m)^`+quoted+`:`).MatchString(text)
		}
		// What would change whose files they are: the pod's environment has the one, and a pod is never the other.
		if !set && !slices.Contains([]string{"identity", "readonly", "remount"}, quoted) {
			t.Errorf("%s may not be in settings, and the operator does not set it", quoted)
		}
	}
}

// fill writes what Secrets bring into a daemon's container.
func fill(t *testing.T, root string, in build.Inputs) {
	t.Helper()
	secret, _, err := certs.Renewed(nil, build.ServerName(in.Cache.Name), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for key, value := range secret {
		write("etc/kv3fs-daemon/"+key, value)
	}
	write("etc/kv3fs-pages/token", secret[certs.Token])
	for _, key := range []string{certs.Trust, corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		write("etc/kv3fs-etcd/"+key, secret[key])
	}
	write("etc/kv3fs-etcd/password", []byte("password"))
}

// environment returns the variables of the daemon's container, as kubelet would make them.
func environment(t *testing.T, in build.Inputs) []string {
	t.Helper()
	var env []string
	for _, v := range daemonOf(t, in).Env {
		switch {
		case v.ValueFrom == nil:
			env = append(env, v.Name+"="+strings.ReplaceAll(v.Value, "$(POD_IP)", "10.1.2.3"))
		case v.ValueFrom.FieldRef != nil:
			env = append(env, v.Name+"=node-1")
		case v.ValueFrom.SecretKeyRef != nil:
			env = append(env, v.Name+"=user")
		}
	}
	return env
}

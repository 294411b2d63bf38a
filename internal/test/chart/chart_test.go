package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes and the golden files anew")

const (
	deploy  = "../../../deploy"
	chart   = deploy + "/helm/kv3fs"
	samples = chart + "/examples"
)

// head stands above manifests that are made from the chart.
const head = `# Made by "make manifests" from deploy/helm/kv3fs. Do not edit: give the chart other values.
`

// install is what must be there before the objects of the default values.
const install = head + `#
#   kubectl create namespace kv3fs
#   kubectl label namespace kv3fs pod-security.kubernetes.io/enforce=privileged
#   openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=kv3fs.kv3fs.svc -addext subjectAltName=DNS:kv3fs.kv3fs.svc -keyout tls.key -out tls.crt
#   kubectl -n kv3fs create secret generic kv3fs-admin --from-file=tls.crt --from-file=tls.key --from-literal=token=$(openssl rand -hex 32)
#   kubectl -n kv3fs apply -f kv3fs.yaml
#
# and in it the image, kv3fs:VERSION, as you have pushed it.
`

// renderings are the values that are tried, and where their objects are kept.
var renderings = []struct {
	file, head string
	release    string
	args       []string
}{
	{deploy + "/kubernetes/kv3fs.yaml", install, "kv3fs", []string{"--set", "admin.secret=kv3fs-admin"}},
	{deploy + "/kubernetes/sidecar-vllm.yaml", head, "qwen", []string{"--values", samples + "/sidecar-vllm.yaml"}},
	{deploy + "/kubernetes/sidecar-sglang.yaml", head, "qwen", []string{"--values", samples + "/sidecar-sglang.yaml"}},
	{"testdata/claim.yaml", "", "big", []string{"--values", "testdata/claim.values.yaml"}},
	{"testdata/disk.yaml", "", "kv3fs", []string{"--values", "testdata/disk.values.yaml"}},
	{"testdata/least.yaml", "", "kv3fs", []string{"--values", "testdata/least.values.yaml"}},
}

// helm runs it, without what it says of symbolic links.
func helm(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	program := os.Getenv("KV3FS_HELM")
	if program == "" {
		t.Skip("NOT TESTED: KV3FS_HELM names no helm; make manifests builds one")
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), err
}

func render(t *testing.T, release string, args ...string) (out, errs string, err error) {
	t.Helper()
	return helm(t, append([]string{"template", release, chart, "--namespace", "kv3fs"}, args...)...)
}

// The manifests and golden files are what the chart renders.
func TestRenderings(t *testing.T) {
	for _, r := range renderings {
		out, errs, err := render(t, r.release, r.args...)
		if err != nil {
			t.Errorf("%s: %v: %s", r.file, err, errs)
			continue
		}
		out = r.head + out
		if *update {
			if err := os.WriteFile(r.file, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		kept, err := os.ReadFile(r.file)
		if err != nil {
			t.Fatal(err)
		}
		if string(kept) != out {
			t.Errorf("%s is not what the chart renders, from %q on: run make manifests", r.file, differs(string(kept), out))
		}
	}
}

// differs returns the first line of b that is not that of a.
func differs(a, b string) string {
	lines := strings.Split(a, "\n")
	for i, line := range strings.Split(b, "\n") {
		if i == len(lines) || lines[i] != line {
			return line
		}
	}
	return "its end"
}

func TestLint(t *testing.T) {
	out, errs, err := helm(t, "lint", "--strict", chart)
	if err != nil || !strings.Contains(out, "0 chart(s) failed") {
		t.Errorf("%v: %s%s", err, out, errs)
	}
}

// Values that are wrong are refused before anything is installed, by a message that names them.
func TestWrongValues(t *testing.T) {
	for set, says := range map[string]string{
		"config.worker=3":                           "'worker' not allowed",
		"config.mount=/mnt":                         "'mount' not allowed", // the chart's own
		"capacity=10 TB":                            "/capacity",
		"capacity=101%":                             "/capacity",
		"data.hostPath=/data":                       "/data/hostPath", // a directory of the root would be everything of a disk's
		"data.hostPath=/var/lib/../..":              "/data/hostPath",
		"node.runDirectory=/var/lib/kv3fs":          "/node/runDirectory", // on a disk: rings could not outlive anything there
		"daemon.resources.limit.memory=1Gi":         "'limit' not allowed",
		"csi.allow[0].namespace=a":                  "missing property 'directory'",
		"pages.namespaces={a/b}":                    "/pages/namespaces/0",
		"pages.etcd.endpoints={http://e:2379}":      "/pages/etcd/endpoints/0",
		"pages.etcd.endpoints={e:2379}":             "give data.claim",
		"sidecar.enabled=true":                      "sidecar.image",
		"sidecar.shm=16GB":                          "/sidecar/shm",
		"nonsense=1":                                "'nonsense' not allowed",
		"daemon.updateStrategy.maxUnavailable=none": "/daemon/updateStrategy/maxUnavailable",
	} {
		if out, errs, err := render(t, "x", "--set", set); err == nil || !strings.Contains(errs, says) {
			t.Errorf("%s: %v: %s%.200s", set, err, errs, out)
		}
	}
	if _, errs, err := render(t, "x", "--set", "pages.etcd.endpoints={e:2379}", "--set", "data.claim=c"); err == nil || !strings.Contains(errs, "peerSecret") {
		t.Errorf("no peerSecret: %v: %s", err, errs)
	}
}

// Without a Secret of the user's, the chart makes one that is new each time, and lets nobody but root read it.
func TestSecret(t *testing.T) {
	first, errs, err := render(t, "kv3fs", "--show-only", "templates/secret.yaml")
	if err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	second, _, err := render(t, "kv3fs", "--show-only", "templates/secret.yaml")
	if err != nil || first == second {
		t.Errorf("%v: the same secret twice", err)
	}
	for _, key := range []string{"\n  token: ", "\n  tls.crt: ", "\n  tls.key: "} {
		if !strings.Contains(first, key) {
			t.Errorf("no %q in it", key)
		}
	}
}

// Every file of the chart is in its package, with what its links lead to.
func TestPackage(t *testing.T) {
	dir := t.TempDir()
	if _, errs, err := helm(t, "package", chart, "--destination", dir); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "kv3fs-*.tgz"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("%q, %v", packages, err)
	}
	out, errs, err := helm(t, "template", "kv3fs", packages[0], "--namespace", "kv3fs", "--set", "admin.secret=kv3fs-admin")
	if err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	kept, err := os.ReadFile(renderings[0].file)
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != install+out {
		t.Errorf("the package renders something else, from %q on", differs(string(kept), install+out))
	}
}

// With operator.enabled, there are the operator, its CRD and its rules as they are in its module, and no DaemonSet of the chart's own. The CRD stays when the
// chart is uninstalled: every KVCache would go with it.
func TestOperator(t *testing.T) {
	out, errs, err := render(t, "kv3fs", "--set", "operator.enabled=true")
	if err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	type object struct {
		Kind     string
		Metadata struct {
			Name        string
			Annotations map[string]string
		}
		Spec  any
		Rules any
	}
	read := func(text string) map[string]object {
		t.Helper()
		all := map[string]object{}
		for document := range strings.SplitSeq(text, "\n---\n") {
			asJSON, err := yaml.YAMLToJSON([]byte(document))
			var o object
			if err == nil {
				err = json.Unmarshal(asJSON, &o)
			}
			if err != nil {
				t.Fatalf("%v: %.300s", err, document)
			}
			if _, twice := all[o.Kind]; twice && (o.Kind == "CustomResourceDefinition" || o.Kind == "Deployment") {
				t.Errorf("two of %s", o.Kind)
			}
			all[o.Kind] = o
		}
		return all
	}
	rendered := read(out)
	for _, kind := range []string{"Deployment", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount", "PodDisruptionBudget", "ValidatingAdmissionPolicy"} {
		if _, ok := rendered[kind]; !ok {
			t.Errorf("no %s", kind)
		}
	}
	for _, kind := range []string{"DaemonSet", "CSIDriver", "Secret"} {
		if o, ok := rendered[kind]; ok {
			t.Errorf("%s %s, which the operator makes", kind, o.Metadata.Name)
		}
	}
	if keep := rendered["CustomResourceDefinition"].Metadata.Annotations["helm.sh/resource-policy"]; keep != "keep" {
		t.Errorf("the CRD has the resource policy %q", keep)
	}
	for _, file := range []string{"../../../operator/crds/kv3fs.io_kvcaches.yaml", "../../../operator/rbac/role.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for kind, o := range read(string(text)) {
			if got := rendered[kind]; kind != "" && (!reflect.DeepEqual(got.Spec, o.Spec) || !reflect.DeepEqual(got.Rules, o.Rules)) {
				t.Errorf("%s is not that of %s", kind, file)
			}
		}
	}
}

// A release installs the image of its own version.
func TestVersion(t *testing.T) {
	version, err := os.ReadFile("../../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var is struct {
		Version    string `yaml:"version"`
		AppVersion string `yaml:"appVersion"`
	}
	if err := yaml.Unmarshal(text, &is); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(version)); is.Version != want || is.AppVersion != want {
		t.Errorf("Chart.yaml has version %s and appVersion %s, and VERSION says %s: give the chart that one, and run make manifests", is.Version, is.AppVersion, want)
	}
}

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// object is what manifests have that concerns kv3fs.
type object struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct {
				InitContainers, Containers []container
			}
		}
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct{ Name string }

	StartupProbe, ReadinessProbe, LivenessProbe struct {
		Exec struct{ Command []string }
	}
}

// manifests returns the objects that the Helm chart renders, by file: internal/test/chart compares them with the chart.
func manifests(t *testing.T) map[string][]object {
	t.Helper()
	all := map[string][]object{}
	for _, pattern := range []string{"../../deploy/kubernetes/*.yaml", "../../internal/test/chart/testdata/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, ".values.yaml") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, document := range bytes.Split(text, []byte("\n---\n")) {
				var o object
				asJSON, err := yaml.YAMLToJSON(document)
				if err == nil {
					err = json.Unmarshal(asJSON, &o)
				}
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				all[file] = append(all[file], o)
			}
		}
	}
	return all
}

// What the Helm chart writes into configuration files is right for this binary.
func TestChartsConfiguration(t *testing.T) {
	secrets := t.TempDir() // stands in for what pods have in /etc
	for _, name := range []string{"kv3fs-admin/token", "kv3fs-peers/token", "kv3fs-pages/token", "kv3fs-etcd/password"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(secrets, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(secrets, name), []byte("0123456789abcdef0123456789abcdef"), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, dir := range []string{"kv3fs-admin", "kv3fs-etcd"} {
		for name, content := range map[string][]byte{"tls.crt": certificate, "ca.crt": certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})} {
			if err := os.WriteFile(filepath.Join(secrets, dir, name), content, 0o400); err != nil {
				t.Fatal(err)
			}
		}
	}
	for file, objects := range manifests(t) {
		found := 0
		for _, o := range objects {
			config, ok := o.Data["kv3fs.yaml"]
			if !ok {
				continue
			}
			found++
			config = strings.ReplaceAll(config, "/etc/kv3fs-", secrets+"/kv3fs-")
			path := filepath.Join(t.TempDir(), "kv3fs.yaml")
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			flags := []string{"serve", "--check", "--config", path, "--identity", "node-1"}
			if strings.Contains(config, "pages-peer-listen") {
				flags = append(flags, "--pages-peer-address", "[10.0.0.7]:18001", "--pages-store-user", "kv3fs")
			}
			if status, _, errs := usage(flags...); status != 0 {
				t.Errorf("%s: status %d: %s\n%s", file, status, errs, config)
			}
		}
		if found != 1 {
			t.Errorf("%s has %d configuration files", file, found)
		}
	}
}

// The command lines and variables in what the Helm chart renders are those of this binary.
func TestChartsCommands(t *testing.T) {
	variables := map[string]bool{}
	for _, leaf := range grammar(t).Model.Leaves(false) {
		for _, flag := range leaf.Flags {
			for _, env := range flag.Envs {
				variables[env] = true
			}
		}
	}
	for file, objects := range manifests(t) {
		tried := 0
		for _, o := range objects {
			pod := o.Spec.Template.Spec
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				if !strings.HasPrefix(c.Image, "kv3fs") {
					continue
				}
				for _, args := range [][]string{c.Args, c.StartupProbe.Exec.Command, c.ReadinessProbe.Exec.Command, c.LivenessProbe.Exec.Command} {
					if len(args) == 0 {
						continue
					}
					args = slices.Clone(args)
					if args[0] == "/usr/bin/kv3fs" {
						args = args[1:]
					}
					for i := range args {
						if strings.HasPrefix(args[i], "--admin-") {
							args[i] = "--admin-listen=127.0.0.1:9181" // its files are not here
						}
					}
					tried++
					if _, err := grammar(t).Parse(args); err != nil {
						t.Errorf("%s: %s: %q: %v", file, c.Name, args, err)
					}
				}
				for _, e := range c.Env {
					if strings.HasPrefix(e.Name, "KV3FS_") && !variables[e.Name] {
						t.Errorf("%s: %s: no flag has the variable %s", file, c.Name, e.Name)
					}
				}
			}
		}
		if tried < 3 {
			t.Errorf("%s has %d command lines of kv3fs", file, tried)
		}
	}
}

// Keys that the chart's values may have below config are those of serve, but for those that the chart sets from other values.
func TestChartsSchema(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/kv3fs/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				Properties           map[string]any
				AdditionalProperties *bool
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	config := schema.Properties.Config
	if config.AdditionalProperties == nil || *config.AdditionalProperties {
		t.Error("it takes any key")
	}
	own := strings.Fields(`data data-must-exist data-must-be-mount mount capacity restart-state on-term identity readonly
		admin-listen admin-token-file admin-cert admin-key pages-listen pages-host pages-token-file pages-store pages-store-ca pages-store-cert
		pages-store-key pages-store-user pages-store-password-file pages-peer-listen pages-peer-address pages-peer-token-file pages-peer-ca
		pages-peer-cert pages-peer-key`)
	var want []string
	for _, leaf := range grammar(t).Model.Leaves(false) {
		if leaf.Path() != "serve" {
			continue
		}
		for _, flag := range leaf.Flags {
			if isKey(flag) && !slices.Contains(own, flag.Name) {
				want = append(want, flag.Name)
			}
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(config.Properties)); !slices.Equal(got, want) {
		t.Errorf("values.schema.json has below config\n%q, but serve has\n%q", got, want)
	}
}

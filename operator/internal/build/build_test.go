package build_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/build"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// inputs reads a KVCache of testdata, with the defaults that the server would fill in.
func inputs(t *testing.T, name string) build.Inputs {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cache := &v1alpha1.KVCache{}
	if err := yaml.UnmarshalStrict(text, cache); err != nil {
		t.Fatal(err)
	}
	cache.UID = "uid"
	s := &cache.Spec
	if s.Capacity == "" {
		s.Capacity = "80%"
	}
	s.PageService.Port = 18000
	s.Placement.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	s.UpdateStrategy = v1alpha1.UpdateStrategy{Type: string(appsv1.RollingUpdateDaemonSetStrategyType), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	return build.Inputs{Cache: cache, Namespace: "kv3fs-system", Image: "kv3fs:test", OperatorImage: "kv3fs-operator:test",
		Secret: map[string][]byte{"token": []byte("secret")}, Etcd: build.EtcdSecret{CA: true, Certificate: true, Password: true}}
}

// What a KVCache becomes stands in testdata, where a change of it is seen: -rewrite writes it anew.
func TestObjects(t *testing.T) {
	for _, name := range []string{"hostpath", "localdisk", "claim"} {
		t.Run(name, func(t *testing.T) {
			in := inputs(t, name)
			objects, err := build.All(in)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, o := range append(objects, build.Erase(in)) {
				text, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			file := filepath.Join("testdata", name+".golden.yaml")
			if *rewrite {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s is another; go test ./internal/build -rewrite, and look at the difference:\n%s", file, firstDifference(got.String(), string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return "now:  " + g[i] + "\nwas:  " + w[i]
		}
	}
	return "one is longer"
}

func daemonOf(t *testing.T, in build.Inputs) corev1.Container {
	t.Helper()
	objects, err := build.All(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if set, ok := o.(*appsv1.DaemonSet); ok {
			return set.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("there is no DaemonSet")
	return corev1.Container{}
}

package manifests

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kv3fs/kv3fs/operator/internal/apiservertest"
)

const rendered = "../../../deploy/kubernetes/kv3fs.yaml"

// warnings keeps what the server warns of.
type warnings struct{ all []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.all = append(w.all, text) }

func (w *warnings) take() string {
	all := w.all
	w.all = nil
	return strings.Join(all, "; ")
}

func connect(t *testing.T) (client.Client, *warnings) {
	t.Helper()
	config := rest.CopyConfig(apiservertest.Start(t).Config)
	heard := &warnings{}
	config.WarningHandler = heard
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kv3fs", "engines"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Create(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	heard.take()
	return c, heard
}

// objects are those of a file, but for what no API server has by itself.
func objects(t *testing.T, file string) (all []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		switch {
		case len(o.Object) == 0 || strings.HasPrefix(o.GetAPIVersion(), "monitoring.coreos.com/"):
			continue
		case !slices.Contains([]string{"CSIDriver", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, o.GetKind()):
			o.SetNamespace("kv3fs")
		}
		all = append(all, o)
	}
}

// A server takes everything that the chart renders, with no field that it does not know, by a dry run.
func TestServerTakesManifests(t *testing.T) {
	c, heard := connect(t)
	var files []string
	for _, pattern := range []string{"../../../deploy/kubernetes/*.yaml", "../../../internal/test/chart/testdata/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".values.yaml") {
			continue
		}
		taken := 0
		for _, o := range objects(t, file) {
			err := c.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
			if said := heard.take(); err != nil || said != "" {
				t.Errorf("%s: %s %s: %v %s", file, o.GetKind(), o.GetName(), err, said)
			}
			taken++
		}
		if taken < 3 {
			t.Errorf("%s has %d objects", file, taken)
		}
	}
}

// pod has the volume as docs/kubernetes.md says.
func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "engine", Namespace: "engines"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "wait", Image: "kv3fs", VolumeMounts: []corev1.VolumeMount{
				{Name: "kv", MountPath: "/mnt/3fs", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)}}}},
			Containers: []corev1.Container{
				{
					Name: "engine", Image: "engine",
					Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Gi")}},
					VolumeMounts: []corev1.VolumeMount{
						{Name: "kv", MountPath: "/mnt/3fs", MountPropagation: ptr.To(corev1.MountPropagationHostToContainer)},
						{Name: "shm", MountPath: "/dev/shm"},
					},
				},
				{Name: "other", Image: "other"},
			},
			Volumes: []corev1.Volume{
				{Name: "kv", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "kv3fs.io"}}},
				{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("16Gi"))}}},
			},
		},
	}
}

// The policies refuse the mistakes of docs/kubernetes.md by name, warn of another one, and let everything else through.
func TestPolicies(t *testing.T) {
	c, heard := connect(t)
	for _, o := range objects(t, rendered) {
		if !strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatalf("%s: %v", o.GetName(), err)
		}
	}
	try := func(change func(*corev1.Pod)) (string, error) {
		p := pod()
		change(p)
		heard.take()
		err := c.Create(t.Context(), p, client.DryRunAll)
		return heard.take(), err
	}
	mistakes := map[string]struct {
		change func(*corev1.Pod)
		says   string
	}{
		"hostUsers": {func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }, "cannot have hostUsers: false"},
		"subPath":   {func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "a" }, "subPath leaves out 3fs-virt"},
		"subPathExpr": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "a"}}
			p.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(A)"
		}, "subPath leaves out 3fs-virt"},
		"no /dev/shm": {func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1] }, "64Mi in container engine"},
		"small /dev/shm": {func(p *corev1.Pod) { p.Spec.Volumes[1].EmptyDir.SizeLimit = ptr.To(resource.MustParse("1023Mi")) },
			"smaller than 1Gi"},
		"limit of memory": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("16384Mi")
		}, "not above the sizeLimit"},
	}
	// The server compiles policies some time after it has taken them.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := try(mistakes["hostUsers"].change); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the policies have no effect")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(mistakes)) {
		if _, err := try(mistakes[name].change); err == nil || !strings.Contains(err.Error(), mistakes[name].says) {
			t.Errorf("%s: %v", name, err)
		}
		skip := func(p *corev1.Pod) {
			mistakes[name].change(p)
			p.Annotations = map[string]string{"kv3fs.io/admission": "skip"}
		}
		if _, err := try(skip); err != nil {
			t.Errorf("%s, skipped: %v", name, err)
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"as documented": func(*corev1.Pod) {},
		"no limit":      func(p *corev1.Pod) { p.Spec.Containers[0].Resources = corev1.ResourceRequirements{} },
		"no size":       func(p *corev1.Pod) { p.Spec.Volumes[1].EmptyDir.SizeLimit = nil },
		"hostIPC": func(p *corev1.Pod) {
			p.Spec.HostIPC = true
			p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
		},
		"another driver": func(p *corev1.Pod) {
			p.Spec.Volumes[0].CSI.Driver = "another.example"
			p.Spec.HostUsers = ptr.To(false)
		},
		"no volumes": func(p *corev1.Pod) {
			p.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}, HostUsers: ptr.To(false)}
		},
	} {
		if said, err := try(change); err != nil || said != "" {
			t.Errorf("%s: %v %s", name, err, said)
		}
	}
	// The advice, which has been compiled once it is heard.
	without := func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].MountPropagation = nil }
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		said, err := try(without)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(said, "keeps a dead mount") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no advice, but %q", said)
		}
	}
}

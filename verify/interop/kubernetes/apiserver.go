//go:build ignore

// Apiserver serves the Leases of Kubernetes over one etcd: apiserver ETCD PORT. It is the API server of custom resources
// (apiextensions-apiserver), with the Lease as such a resource. Nothing asks who the caller is.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

func main() {
	if err := serveAPI(genericapiserver.SetupSignalContext(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// elsewhere replaces the config of a whole Kubernetes API server, which informers would use.
const elsewhere = `apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.1.2.3:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
users: [{name: none, user: {}}]
`

func serveAPI(ctx context.Context, etcd, port string) error {
	dir, err := os.MkdirTemp("", "apiserver-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(elsewhere), 0o600); err != nil {
		return err
	}
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	o.RecommendedOptions.Authentication, o.RecommendedOptions.Authorization = nil, nil
	flags := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{
		"--etcd-servers", "http://" + etcd, "--secure-port", port, "--bind-address", "127.0.0.1", "--cert-dir", dir, "--kubeconfig", kubeconfig,
		"--enable-priority-and-fairness=false", "--disable-admission-plugins",
		"NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy,MutatingAdmissionPolicy",
	}); err != nil {
		return err
	}
	if err := o.Complete(); err != nil {
		return err
	}
	config, err := o.Config()
	if err != nil {
		return err
	}
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	go func() {
		if err := createLease(ctx, server.GenericAPIServer.LoopbackClientConfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
	}()
	return server.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

// createLease defines the resource and waits until it is served.
func createLease(ctx context.Context, config *rest.Config) error {
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		return err
	}
	open := true
	lease := &v1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "leases.coordination.k8s.io",
			Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, for tests"},
		},
		Spec: v1.CustomResourceDefinitionSpec{
			Group: "coordination.k8s.io", Scope: v1.NamespaceScoped,
			Names: v1.CustomResourceDefinitionNames{Plural: "leases", Singular: "lease", Kind: "Lease", ListKind: "LeaseList"},
			Versions: []v1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &v1.CustomResourceValidation{OpenAPIV3Schema: &v1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}},
			}},
		},
	}
	leases, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for created := false; ; time.Sleep(100 * time.Millisecond) {
		if !created {
			_, err = definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, lease, metav1.CreateOptions{})
			created = err == nil
		}
		if created {
			if _, err = leases.Leases("default").List(ctx, metav1.ListOptions{}); err == nil {
				return nil
			}
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

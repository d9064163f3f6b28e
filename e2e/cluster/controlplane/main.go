// The control plane of the local cluster in one binary: its first argument, or the name it is called
// by, says which part it is. One binary, because the parts share nearly all of their code: together
// they take 140 MB of disk and one link instead of five.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	_ "time/tzdata" // CronJobs may name time zones

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// parts maps a part's name to its main function, which reads os.Args and may end the process itself.
var parts = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
}

func main() {
	called := filepath.Base(os.Args[0])
	if parts[called] == nil && len(os.Args) > 1 {
		called = os.Args[1]
		os.Args = os.Args[1:]
	}
	run := parts[called]
	if run == nil {
		fmt.Fprintf(os.Stderr, "no such part: %s; name one of %s\n", called, strings.Join(names(), ", "))
		os.Exit(64)
	}
	os.Exit(run())
}

func names() []string {
	found := make([]string, 0, len(parts))
	for name := range parts {
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubectl() int {
	// Verbosity counts before the command exists: it decides what is logged while plugins are found.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

// What holds the namespaces of a pod: waits for its end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM, syscall.SIGINT)
	<-ending
	os.Exit(0)
}

// A browser refuses workers to pages opened from a disk (file://). There, run the script of the
// search in a hidden frame instead, behind the part of Worker's interface that the theme uses.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inside.document.createElement("script")
      this.loaded = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
      })
      script.src = new URL(url, location).href
      this.inside.document.body.append(script)
    }
    async postMessage(data) {
      await this.loaded
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }
}

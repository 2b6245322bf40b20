/// An executor that passes everything on to the host executor, for executors of tests that change one thing.
#pragma once

#include "engine/backend/cuda/executor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reference {

class ExecutorOverHost : public keyhole::cuda::Executor {
  public:
    explicit ExecutorOverHost(const keyhole::cuda::HostOrder& order = {})
        : host_(keyhole::cuda::make_host_executor(order)) {}

    std::string name() const override { return host_->name(); }
    keyhole::cuda::MemoryUse memory() const override { return host_->memory(); }
    void* allocate(std::size_t n) override { return host_->allocate(n); }
    void release(void* data) noexcept override { host_->release(data); }
    void* allocate_host(std::size_t n) override { return host_->allocate_host(n); }
    void release_host(void* data) noexcept override { host_->release_host(data); }
    void upload(void* to, const void* from, std::size_t n) override { host_->upload(to, from, n); }
    void download(void* to, const void* from, std::size_t n) override { host_->download(to, from, n); }
    void download_rows(void* to, std::size_t a, const void* from, std::size_t b, std::size_t width,
                       std::size_t n) override {
        host_->download_rows(to, a, from, b, width, n);
    }
    void download_async(void* to, const void* from, std::size_t n) override {
        host_->download_async(to, from, n);
    }
    void wait_for_copies() override { host_->wait_for_copies(); }
    void copy(void* to, const void* from, std::size_t n) override { host_->copy(to, from, n); }
    void clear(void* to, std::size_t n) override { host_->clear(to, n); }
    void wait() override { host_->wait(); }
    void time_launches(bool on) override { host_->time_launches(on); }
    std::vector<double> take_times() override { return host_->take_times(); }

  protected:
    /// Runs one launch.
    virtual void run_one(const keyhole::cuda::Launch& launch) { host_->launch(launch); }
    keyhole::cuda::Executor& host() { return *host_; }

    void run(std::span<const keyhole::cuda::Launch> launches) final {
        for (const keyhole::cuda::Launch& launch : launches) run_one(launch);
    }
    void run_graph(std::span<const keyhole::cuda::Launch> launches, int, bool is_new) final {
        run(launches);
        if (!is_new) note_graph(graphs_work_);
    }
    bool graphs_work_ = true;

  private:
    std::unique_ptr<keyhole::cuda::Executor> host_;
};

}  // namespace reference

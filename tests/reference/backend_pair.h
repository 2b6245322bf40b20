/// Runs the same lanes on the CUDA and on the CPU backend and compares them row by row, with commands between
/// rows. Used by unit tests (the host executes the kernels) and by GPU tests. It compares two backends; it
/// does not know the reference model.
#pragma once

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/policy/lane_spec.h"
#include "engine/session/session.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace reference {

inline constexpr keyhole::RowRequest kAllOfARow{true, true, true, true, true, keyhole::RowForm::both, true};

/// Expects the row's block to hold its floats, to the bit: attention narrowed, scores as they are.
void expect_block_of(const keyhole::RowOutput& out);

/// A CUDA backend on the executor that executor_under_test() returns.
std::unique_ptr<keyhole::Backend> cuda_backend(const std::shared_ptr<const keyhole::Model>& model,
                                               unsigned shuffle = 1,
                                               const keyhole::cuda::ProductOptions& products = {});

/// Skips its tests by name where there is no device.
class CudaBackend : public ::testing::Test {
  protected:
    void SetUp() override;
};

/// Resolves a lane's policy for the model that it runs (with the spec's KV sharing) and 20 generated tokens.
keyhole::ResolvedPolicy policy_of(const std::string& spec, const keyhole::Model& model, int n_prompt);

/// Expects each lane to give the same bits alone and in another order of threads. This finds a thread that
/// reads what another thread writes in the same phase, and a lane that reads another lane's numbers.
void expect_lanes_stand_alone(const std::shared_ptr<const keyhole::Model>& model,
                              const std::vector<std::string>& specs);

/// Returns the number of graphs that 30 rows of the lanes need. A device replays a list of launches that
/// equals the previous one as a graph, so per-row values must not be in the list.
int graphs_of(const std::shared_ptr<const keyhole::Model>& model, const std::vector<std::string>& specs);

/// Runs a session with commands in it ("step 8" decodes rows) on the CPU, and on CUDA with and without
/// checkpoints. Expects the same tokens and evictions, and logits within rounding. The two CUDA runs and a
/// replay of the first must be equal to the bit.
void expect_sessions_follow_the_cpu(const std::shared_ptr<const keyhole::Model>& model,
                                    const keyhole::RunSpec& spec, const std::vector<std::string>& script);

/// One lane on both backends.
struct Twin {
    std::shared_ptr<const keyhole::Model> model;
    std::unique_ptr<keyhole::KvCache> cpu, cuda;
    keyhole::RowOutput cpu_out, cuda_out;
};

class Pair {
  public:
    explicit Pair(const TinyShape& shape, int n_prompt = 30);
    explicit Pair(std::shared_ptr<const keyhole::Model> of, int n_prompt = 30, std::uint64_t seed = 1,
                  const keyhole::cuda::ProductOptions& products = {});

    /// Starts the lanes. A lane may share KV heads otherwise than the model. Any difference fails the test.
    void start(const std::vector<std::string>& specs);
    void step(int n_rows = 1);
    void apply(std::size_t lane, const std::string& spec);
    void evict(std::size_t lane, int g, int position);
    void pin(std::size_t lane, int g, int position, bool pinned = true);
    /// Adds a copy of the lane with all its state.
    void fork(std::size_t lane);
    void compare(const std::string& where);

    std::shared_ptr<const keyhole::Model> model;
    std::unique_ptr<keyhole::Backend> cpu, cuda;
    std::vector<keyhole::ResolvedPolicy> policies;
    std::vector<Twin> lanes;
    double tolerance = 2e-4;

  private:
    void prefill_lanes_of(const keyhole::Model* one);
    void near(const char* what, const std::vector<float>& a, const std::vector<float>& b) const;

    int n_prompt_, next_;
    std::vector<int> tokens_;
};

}  // namespace reference

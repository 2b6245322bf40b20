/// Passes the tiles of a prompt to a sink, under the session's lane numbers, and to the record. Called by the
/// backend's worker threads; used by the session only.
#pragma once

#include "engine/policy/prefill_sink.h"
#include "engine/trace/record.h"

#include <memory>
#include <vector>

namespace keyhole {

/// Passes tiles on under the session's lane numbers, since the backend numbers only the lanes of its call.
class LaneTiles final : public PrefillSink {
  public:
    LaneTiles(PrefillSink& to, std::vector<int> lanes, bool all_lanes)
        : to_(to), lanes_(std::move(lanes)), all_lanes_(all_lanes) {}
    RowRequest requested() const override { return to_.requested(); }
    void attention(const PrefillTile& tile) override { send(tile, &PrefillSink::attention); }
    void logits(const PrefillTile& tile) override { send(tile, &PrefillSink::logits); }
    void noise(const PrefillTile& tile) override { send(tile, &PrefillSink::noise); }
    void scores(const PrefillTile& tile) override { send(tile, &PrefillSink::scores); }
    void inputs(const InputTile& tile) override { send(tile, &PrefillSink::inputs); }

  private:
    template <class Tile>
    void send(Tile tile, void (PrefillSink::*what)(const Tile&));

    PrefillSink& to_;
    std::vector<int> lanes_;
    bool all_lanes_;
};

/// Returns PromptRows::reduction of a prompt, for all query heads of the model.
int prompt_reduction(std::size_t n_heads, std::size_t n_prompt);

/// Keeps the prompt's attention for the record, max-reduced to fit its budget, and passes the tiles on to a
/// second sink.
class PromptRecorder final : public PrefillSink {
  public:
    PromptRecorder(const RunInfo& run, PrefillSink* next);
    std::shared_ptr<const PromptRows> take() { return rows_; }

    RowRequest requested() const override;
    void attention(const PrefillTile& tile) override;
    void logits(const PrefillTile& tile) override { next_->logits(tile); }
    void noise(const PrefillTile& tile) override { next_->noise(tile); }
    void scores(const PrefillTile& tile) override { next_->scores(tile); }
    void inputs(const InputTile& tile) override { next_->inputs(tile); }

  private:
    PrefillSink* next_;
    int n_heads_;
    std::shared_ptr<PromptRows> rows_;
};

}  // namespace keyhole

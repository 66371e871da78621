    static constexpr bool swap = false;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 64, block_q = 48, block_k = 64;
    static constexpr kw::Steps epilogue = {false, true, kw::Added::nothing, kw::Activation::none, 8};
    static constexpr int split_k = 4;
    static constexpr int stages = 14;
    static constexpr Load load = Load::tma;
    static constexpr Tails tails = Tails::none;

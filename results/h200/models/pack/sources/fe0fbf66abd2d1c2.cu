    static constexpr bool swap = false;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 64, block_q = 64, block_k = 64;
    static constexpr kw::Steps epilogue = {false, true, kw::Added::nothing, kw::Activation::none, 8};
    static constexpr int split_k = 1;
    static constexpr int stages = 14, subtiles = 1;
    static constexpr int cluster_p = 1, cluster_q = 1;
    static constexpr int raster_group = 8;
    static constexpr bool partials_apart = false;
